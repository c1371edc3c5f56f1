// What ops do with their tensors. See op_traits.h.
#include "policy/op_traits.h"

#include <algorithm>
#include <unordered_set>

#include "policy/names.h"

namespace habana_mp {
namespace {

constexpr NotComputing kNotComputing[] = {
    {"conversion",
     "to type type_as to_dense to_sparse to_sparse_coo to_sparse_csr to_sparse_csc to_sparse_bsr"
     " to_sparse_bsc to_mkldnn to_padded_tensor dequantize int_repr float double half bfloat16 int"
     " long short char byte bool cfloat cdouble chalf cpu cuda xpu ipu mtia result_type can_cast"
     " promote_types"},
    {"view or shape",
     "view view_as view_as_real view_as_complex view_copy reshape reshape_as expand expand_as"
     " expand_copy permute permute_copy transpose transpose_copy t t_copy swapaxes swapdims"
     " squeeze squeeze_copy unsqueeze unsqueeze_copy flatten unflatten ravel narrow narrow_copy"
     " select select_copy slice_copy slice_inverse split split_copy split_with_sizes"
     " split_with_sizes_copy chunk tensor_split hsplit vsplit dsplit unsafe_chunk unsafe_split"
     " unsafe_split_with_sizes unbind unbind_copy unfold unfold_copy diagonal diagonal_copy"
     " movedim moveaxis as_strided as_strided_copy detach detach_copy real imag adjoint conj"
     " conj_physical resolve_conj resolve_neg positive __pos__ broadcast_to broadcast_tensors"
     " atleast_1d atleast_2d atleast_3d meshgrid contiguous values values_copy indices"
     " indices_copy crow_indices crow_indices_copy col_indices col_indices_copy ccol_indices"
     " ccol_indices_copy row_indices row_indices_copy view_as_real_copy view_as_complex_copy"
     " alias_copy alias slice numpy_T matrix_H mT mH lift lift_fresh lift_fresh_copy"
     " reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d"
     " replication_pad3d __getitem__ pixel_shuffle pixel_unshuffle fftshift ifftshift "
     "channel_shuffle"
     " native_channel_shuffle pad constant_pad_nd roll flip fliplr flipud rot90 repeat"
     " repeat_interleave tile gather index index_select masked_select take take_along_dim tril"
     " triu diag diag_embed diagflat one_hot im2col unique unique_consecutive unique_dim"
     " tril_indices triu_indices unravel_index pad_sequence flatten_dense_tensors"
     " unflatten_dense_tensors block_diag combinations cartesian_prod sparse_mask coalesce resize"
     " resize_as resize_as_sparse sparse_resize sparse_resize_and_clear set"},
    {"constructor",
     "arange range linspace logspace eye empty empty_like empty_permuted empty_strided"
     " empty_quantized ones ones_like zeros zeros_like full full_like new_empty new_empty_strided"
     " new_full new_ones new_tensor new_zeros tensor as_tensor asarray scalar_tensor from_numpy"
     " frombuffer from_file bartlett_window blackman_window hamming_window hann_window"
     " kaiser_window sparse_coo_tensor sparse_csr_tensor sparse_csc_tensor sparse_bsr_tensor"
     " sparse_bsc_tensor sparse_compressed_tensor fill zero"},
    {"random",
     "rand randn rand_like randn_like randint randint_like randperm bernoulli multinomial normal"
     " poisson binomial uniform cauchy exponential geometric log_normal random rrelu_with_noise"
     " gumbel_softmax"},
    {"comparison or test",
     "eq ne lt le gt ge greater greater_equal less less_equal not_equal equal allclose isclose"
     " isin is_same_size is_set_to __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __contains__ isnan"
     " isinf isfinite isposinf isneginf isreal signbit is_complex is_floating_point is_nonzero"
     " is_conj is_neg is_inference is_signed is_coalesced is_pinned is_distributed is_shared all"
     " any argmax argmin argsort argwhere nonzero nonzero_static count_nonzero logical_and"
     " logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor bitwise_not"
     " bitwise_left_shift bitwise_right_shift __and__ __or__ __xor__ __lshift__ __rshift__"
     " __rand__ __ror__ __rxor__ __rlshift__ __rrshift__ __iand__ __ior__ __ixor__ __ilshift__"
     " __irshift__ __invert__ gcd lcm bincount"},
    // Its projections take weights: a cast of them here would be one too many.
    {"made of ops that have rules", "multi_head_attention_forward"},
    {"copy or query",
     "copy clone numel item size stride storage_offset dim is_contiguous retain_grad requires_grad"
     " pin_memory record_stream get_device element_size q_scale q_zero_point q_per_channel_scales"
     " q_per_channel_zero_points q_per_channel_axis qscheme sparse_dim dense_dim backward apply"
     " map map2 hash_tensor share_memory"},
};

// Names as tables spell them here: one text, separated by blanks.
using NameSet = std::unordered_set<std::string_view>;

void add_names(NameSet& all, std::string_view names) {
  while (!names.empty()) {
    const std::size_t end = std::min(names.find(' '), names.size());
    all.insert(names.substr(0, end));
    names.remove_prefix(std::min(end + 1, names.size()));
  }
}

NameSet set_of(std::string_view names) {
  NameSet all;
  add_names(all, names);
  return all;
}

// Found by running torch's own samples of every op under both front ends (make zoo): those whose
// dtype the rules of other ops decide.
constexpr std::string_view kCompounds =
    "einsum inner tensordot chain_matmul multi_dot matrix_power vecdot vdot bilinear cov"
    " corrcoef kron outer ger ldexp square stft istft quantile nanquantile nanmean mvlgamma"
    " multigammaln ndtr sum_to_size trapezoid trapz cumulative_trapezoid gradient"
    " cosine_similarity pairwise_distance kl_div margin_ranking_loss cosine_embedding_loss"
    " cross_entropy cross_entropy_loss adaptive_avg_pool1d adaptive_avg_pool2d"
    " adaptive_avg_pool3d avg_pool1d max_pool1d max_pool1d_with_indices instance_norm"
    " alpha_dropout feature_alpha_dropout ctc_loss rnn_tanh rnn_relu lstm gru rnn_tanh_cell"
    " rnn_relu_cell lstm_cell gru_cell";

// Found by running the same samples with one tensor of another dtype than the others. Ops that take
// some dtypes beside others, as norms and attention with a mask do, are among those that lack
// kernels: they are called as they are, and again where that fails.
constexpr std::string_view kRefusingMixed =
    "linear matmul __matmul__ __rmatmul__ mm bmm mv dot vdot addmm addbmm baddbmm addmv inner"
    " tensordot multi_dot chain_matmul vecdot bilinear conv1d conv2d conv3d conv_transpose1d"
    " conv_transpose2d conv_transpose3d convolution mkldnn_rnn_layer _cudnn_rnn prelu grid_sampler"
    " grid_sampler_2d grid_sampler_3d embedding_bag cross_entropy cross_entropy_loss nll_loss"
    " nll_loss_nd nll_loss2d multi_margin_loss fractional_max_pool2d fractional_max_pool3d"
    " lerp heaviside index_add index_copy index_put __setitem__ index_reduce masked_scatter"
    " put scatter scatter_add scatter_reduce";

// They hand on what they were given, or sum in buffers of its dtype, or have a derivative of their
// own, which takes what is inside to be of the dtype of their arguments. Of linear and matmul it is
// their names that users write: a policy that leaves them out does not mean the mm inside. Nor does
// one that leaves out attention, of whose kernels torch takes now one with a matmul, now another.
constexpr std::string_view kOwnInsides =
    "linear matmul linalg_matmul scaled_dot_product_attention affine_grid_generator cdist pinverse "
    "pinv _sparse_addmm"
    " _scaled_mm _scaled_mm_v2 _unsafe_masked_index _unsafe_masked_index_put_accumulate"
    " matrix_exp _safe_softmax native_dropout_backward t_copy isin _unique2 unique_dim"
    " unique_consecutive combinations cartesian_prod roll _chunk_cat";

constexpr std::string_view kProducts =
    "linear matmul mm bmm mv dot addmm addbmm baddbmm addmv addr vecdot multi_dot chain_matmul"
    " _addmm_activation conv1d conv2d conv3d conv_tbc convolution _convolution _convolution_mode"
    " conv_transpose1d conv_transpose2d conv_transpose3d scaled_dot_product_attention"
    " _native_multi_head_attention mkldnn_rnn_layer _cudnn_rnn _thnn_fused_gru_cell"
    " _thnn_fused_lstm_cell gru_cell lstm_cell rnn_tanh_cell rnn_relu_cell";

// Products and convolutions with a weight; and the last two, which have no activations.
constexpr std::array<std::string_view, 11> kInt8Ops = {
    "linear", "addmm",  "mm",     "matmul",    "bmm",          "baddbmm",
    "conv1d", "conv2d", "conv3d", "embedding", "embedding_bag"};

// All of torch.linalg, torch.fft and torch.special are such too.
constexpr std::string_view kLackingLowKernels =
    "avg_pool3d binary_cross_entropy cdist cholesky cholesky_inverse cholesky_solve complex"
    " cross ctc_loss det geqrf histogram histogramdd inverse layer_norm group_norm batch_norm"
    " logdet lu lu_solve multilabel_margin_loss nanquantile norm nuclear_norm orgqr ormqr"
    " pdist pinverse polar qr quantile rrelu sampled_addmm slogdet"
    " scaled_dot_product_attention sparse_sampled_addmm stft istft svd triangular_solve"
    " view_as_complex _upsample_bilinear2d_aa _upsample_bicubic2d_aa";

bool is_low_level(std::string_view op) {
  // Operators; and ops that F.interpolate calls, private by their names alone.
  if (op.starts_with("__") || op.starts_with("_upsample_")) return false;
  return std::ranges::any_of(kLowLevelPrefixes,
                             [op](const char* prefix) { return op.starts_with(prefix); });
}

std::string_view without_module(std::string_view op) {
  for (const std::string_view prefix : kModulePrefixes) {
    if (op.starts_with(prefix)) return op.substr(prefix.size());
  }
  return op;
}

std::string_view out_of_place(std::string_view op) {
  return op.ends_with('_') && !op.ends_with("__") ? op.substr(0, op.size() - 1) : op;
}

}  // namespace

bool is_norm(std::string_view op) {
  return std::ranges::find(kNorms, op, &Norm::op) != kNorms.end();
}

bool wants_contiguous(std::string_view op) {
  return std::ranges::find(kContiguousOps, op) != kContiguousOps.end();
}

Insides insides_of(std::string_view op) {
  static const NameSet compounds = set_of(kCompounds);
  static const NameSet own = set_of(kOwnInsides);
  const std::string_view plain = without_module(op);
  if (compounds.contains(plain)) return Insides::Compound;
  return own.contains(plain) ? Insides::Own : Insides::ByRules;
}

bool refuses_mixed(std::string_view op) {
  static const NameSet names = set_of(kRefusingMixed);
  return names.contains(out_of_place(without_module(op)));
}

bool is_product(std::string_view op) {
  static const NameSet products = set_of(kProducts);
  return products.contains(without_module(op));
}

std::span<const std::string_view> int8_ops(Action list) {
  const std::span<const std::string_view> all(kInt8Ops);
  return list == Action::WeightInt8 ? all : all.first(all.size() - 2);
}

bool may_lack_low_kernel(std::string_view op) {
  static const NameSet lacking = set_of(kLackingLowKernels);
  const std::string_view plain = without_module(op);
  return plain.size() < op.size() || lacking.contains(plain);
}

std::span<const NotComputing> not_computing() { return kNotComputing; }

bool computes(std::string_view op) {
  static const NameSet left_out = [] {
    NameSet all;
    for (const NotComputing& group : kNotComputing) add_names(all, group.ops);
    return all;
  }();
  const std::string_view own = without_module(op);
  return !left_out.contains(out_of_place(own)) && own.find("quantize") == std::string_view::npos &&
         !is_low_level(own);
}

}  // namespace habana_mp
