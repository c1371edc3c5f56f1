// What torch's ops do with their tensors, as far as rules depend on it: tables by name, which both
// front ends read, and Python by habana_mp._core. It must not know Python, torch or policies.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "policy/decide.h"

namespace habana_mp {

// A norm (D14): its first tensor is the input, the others are affine parameters or running
// statistics. Where the statistics stand, a bit for each position; torch.nn.functional has an order
// of its own (F132).
struct Norm {
  std::string_view op;
  std::uint32_t statistics;
  std::uint32_t functional_statistics;
};

inline constexpr std::uint32_t kThirdAndFourth = 1u << 3 | 1u << 4;
inline constexpr std::uint32_t kFirstAndSecond = 1u << 1 | 1u << 2;

// rms_norm is none: it has no statistics, and torch fuses it for one dtype of input and weight
// alone.
inline constexpr std::array kNorms = {
    Norm{"layer_norm", 0, 0},
    Norm{"group_norm", 0, 0},
    Norm{"native_layer_norm", 0, 0},
    Norm{"native_group_norm", 0, 0},
    Norm{"batch_norm", kThirdAndFourth, kFirstAndSecond},
    Norm{"instance_norm", kThirdAndFourth, kFirstAndSecond},
    Norm{"native_batch_norm", kThirdAndFourth, 0},
    Norm{"cudnn_batch_norm", kThirdAndFourth, 0},
    Norm{"miopen_batch_norm", kThirdAndFourth, 0},
    Norm{"_batch_norm_impl_index", kThirdAndFourth, 0},
    Norm{"_native_batch_norm_legit", kThirdAndFourth, 0},
    Norm{"_native_batch_norm_legit_no_training", kThirdAndFourth, 0},
};

bool is_norm(std::string_view op);

// They copy a batch that is no row of matrices, so it is cast to a contiguous one.
inline constexpr std::array<std::string_view, 5> kContiguousOps = {
    "linear", "matmul", "linalg_matmul", "__matmul__", "__rmatmul__"};

bool wants_contiguous(std::string_view op);

// Names that D15 leaves out of the rest, separated by blanks. In-place twins (name_) go with their
// base.
struct NotComputing {
  const char* reason;
  std::string_view ops;
};
std::span<const NotComputing> not_computing();

// How the names of ops begin that have kernels of their own behind them: what they take is the
// business of who calls them.
inline constexpr std::array<const char*, 10> kLowLevelPrefixes = {
    "_",       "fused_moving", "scaled_mm", "scaled_grouped_mm", "cudnn_",
    "miopen_", "mkldnn_",      "native_",   "batch_norm_",       "fbgemm_"};

// What becomes of the ops that torch calls inside an op which no list names, under both front ends.
enum class Insides : std::uint8_t {
  ByRules,   // each by its own rule: autocast sees it, and convert sees what Python calls
  Compound,  // made of ops whose rules hold, but for this one: only products run lower (D41)
  Own,       // no rule holds: its arithmetic needs the dtype that it was called with
};
Insides insides_of(std::string_view op);

// Ops that refuse inputs of different dtypes. They get the widest where no list names them (D41): a
// policy that lowers some ops hands low tensors to others.
bool refuses_mixed(std::string_view op);

// Products of matrices, and convolutions: what an op is made of that runs lower inside it (D41).
bool is_product(std::string_view op);

// Ops that the weight_int8 or the int8 list may have (D56).
std::span<const std::string_view> int8_ops(Action list);

// Ops that some device has no kernel of for a low dtype, or for some mixture of dtypes. Those that
// no list names are watched for that error too (D42); an op that a rule holds for is watched
// whether it is one of these or not.
bool may_lack_low_kernel(std::string_view op);

// Whether the rest of a policy may hold for an op (D15). The op is named as its home or as the
// dispatcher names it: "__add__", "relu_", "fft_fftshift".
bool computes(std::string_view op);

}  // namespace habana_mp
