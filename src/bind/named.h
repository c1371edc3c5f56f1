// A struct whose fields are declared (report::kFields) as a dict of them for Python, and back.
#pragma once

#include <c10/core/ScalarType.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <cstring>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "report/site.h"
#include "report/values.h"

namespace habana_mp {

// Names of the dtypes among the bits.
inline pybind11::list dtypes_in(unsigned bits) {
  pybind11::list names;
  for (const DTypeRow& row : kDTypes) {
    if ((bits & dtype_bit(row.dtype)) != 0) names.append(row.name);
  }
  return names;
}

// By the name that torch has for it in Python: "float32"; "" is that of no tensor.
inline std::string name_of(c10::ScalarType type) {
  return type == c10::ScalarType::Undefined ? std::string()
                                            : std::string(c10::getDtypeNames(type).first);
}

inline c10::ScalarType scalar_type_named(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(c10::ScalarType::Undefined); ++i) {
    const auto type = static_cast<c10::ScalarType>(i);
    if (name_of(type) == name) return type;
  }
  throw pybind11::value_error("no dtype of torch: " + name.substr(0, 40));
}

inline std::string name_of(report::Outcome outcome) {
  return report::kOutcomeNames[static_cast<std::size_t>(outcome)];
}

inline report::Outcome outcome_named(const std::string& name) {
  for (std::size_t i = 0; i < report::kOutcomeNames.size(); ++i) {
    if (report::kOutcomeNames[i] == name) return static_cast<report::Outcome>(i);
  }
  throw pybind11::value_error("no decision: " + name.substr(0, 40));
}

// "" of none.
inline std::string name_of(Cause cause) { return cause == Cause::None ? "" : cause_name(cause); }

inline Cause cause_named(const std::string& name) {
  for (std::size_t i = 1; i < kCauseNames.size(); ++i) {
    if (kCauseNames[i] == name) return static_cast<Cause>(i);
  }
  if (name.empty()) return Cause::None;
  throw pybind11::value_error("no cause: " + name.substr(0, 40));
}

template <typename T>
inline constexpr bool kIsName = std::is_same_v<T, c10::ScalarType> ||
                                std::is_same_v<T, report::Outcome> || std::is_same_v<T, Cause>;

template <typename T>
concept Declared = !std::is_same_v<decltype(report::kFields<T>), const std::nullptr_t>;

template <typename T>
inline constexpr bool kIsList = false;
template <typename T>
inline constexpr bool kIsList<std::vector<T>> = Declared<T>;

// kFinite: for JSON, which has no infinity: 0 in place of the smallest number of none, and of what
// comes of the gradients of a step that overflowed.
template <bool kFinite = false, typename T>
pybind11::object named(const T& value) {
  namespace py = pybind11;
  if constexpr (Declared<T>) {
    py::dict fields;
    const auto add = [&]<typename F>(const F& field) {
      const auto& own = value.*field.member;
      if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(own)>>) {
        if (field.adds == report::Adds::Seconds || field.adds == report::Adds::MostSeconds) {
          fields[field.name] = static_cast<double>(own) / 1e9;
          return;
        }
      }
      fields[field.name] = named<kFinite>(own);
    };
    std::apply([&](const auto&... field) { (add(field), ...); }, report::kFields<T>);
    return fields;
  } else if constexpr (kIsList<T>) {
    py::list list;
    for (const auto& each : value) list.append(named<kFinite>(each));
    return list;
  } else if constexpr (kIsName<T>) {
    return py::str(name_of(value));
  } else if constexpr (std::is_enum_v<T>) {
    return py::int_(static_cast<int>(value));
  } else if constexpr (std::is_same_v<T, std::vector<float>>) {
    return py::bytes(reinterpret_cast<const char*>(value.data()), value.size() * sizeof(float));
  } else if constexpr (kFinite && std::is_same_v<T, double>) {
    return py::float_(std::isfinite(value) ? value : 0.0);
  } else {
    return py::cast(value);
  }
}

template <typename T>
void read_named(const pybind11::handle& from, T& value) {
  namespace py = pybind11;
  if constexpr (Declared<T>) {
    const auto read = [&](const auto& field) { read_named(from[field.name], value.*field.member); };
    std::apply([&](const auto&... field) { (read(field), ...); }, report::kFields<T>);
  } else if constexpr (kIsList<T>) {
    for (const py::handle& each : from) read_named(each, value.emplace_back());
  } else if constexpr (std::is_same_v<T, c10::ScalarType>) {
    value = scalar_type_named(from.cast<std::string>());
  } else if constexpr (std::is_same_v<T, report::Outcome>) {
    value = outcome_named(from.cast<std::string>());
  } else if constexpr (std::is_same_v<T, Cause>) {
    value = cause_named(from.cast<std::string>());
  } else if constexpr (std::is_same_v<T, std::vector<float>>) {
    const auto bytes = from.cast<std::string>();
    value.resize(bytes.size() / sizeof(float));
    std::memcpy(value.data(), bytes.data(), value.size() * sizeof(float));
  } else {
    value = from.cast<T>();
  }
}

}  // namespace habana_mp
