#pragma once

#include <string>
#include <vector>

namespace horizon::cpu {

/// A kernel table and the instruction set that it was compiled for.
template <typename Table>
struct NamedTable {
  std::string name;
  const Table* table;
};

#if defined(__x86_64__)
inline bool has_avx2() {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
         __builtin_cpu_supports("f16c") != 0;
}
inline bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0;
}
#endif

}  // namespace horizon::cpu

/// Defines `tables`: the table `name()` of every instruction set that this machine has.
#if defined(__x86_64__)
#define HORIZON_TEST_TABLES(Table, name)                                \
  std::vector<NamedTable<Table>> tables{{"generic", &generic::name()}}; \
  if (has_avx2()) tables.push_back({"avx2", &avx2::name()});            \
  if (has_avx512()) tables.push_back({"avx512", &avx512::name()});      \
  static_assert(true)
#else
#define HORIZON_TEST_TABLES(Table, name)  \
  std::vector<NamedTable<Table>> tables { \
    {                                     \
      "generic", &generic::name()         \
    }                                     \
  }
#endif
