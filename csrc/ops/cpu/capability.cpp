#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>

#include "ops/cpu/dispatch.h"

#if defined(HORIZON_HAVE_AVX512) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace horizon::cpu {
namespace {

/// Instruction sets in ascending order, named as HORIZON_CPU_CAPABILITY names them.
enum class Level { kGeneric, kAvx2, kAvx512, kVnni, kAmx };
constexpr std::array<const char*, 5> kLevelNames{"generic", "avx2", "avx512", "vnni", "amx"};

std::string lower_env(const char* name) {
  const char* raw = std::getenv(name);
  std::string text = raw == nullptr ? "" : raw;
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

#if defined(HORIZON_HAVE_AVX512)

bool machine_has_amx() {
#if defined(__linux__)
  constexpr unsigned kTile = 1U << 24;
  constexpr unsigned kInt8 = 1U << 25;
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  if ((d & kTile) == 0 || (d & kInt8) == 0) return false;
  // Linux saves the tiles of a process only once it has asked for that.
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

Level machine_level() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") == 0 || __builtin_cpu_supports("fma") == 0 ||
      __builtin_cpu_supports("f16c") == 0) {
    return Level::kGeneric;
  }
  if (__builtin_cpu_supports("avx512f") == 0 || __builtin_cpu_supports("avx512bw") == 0 ||
      __builtin_cpu_supports("avx512vl") == 0 || __builtin_cpu_supports("avx512dq") == 0) {
    return Level::kAvx2;
  }
  return __builtin_cpu_supports("avx512vnni") != 0 ? Level::kAmx : Level::kAvx512;
}

Level allowed_level() {
  const std::string own = lower_env("HORIZON_CPU_CAPABILITY");
  if (!own.empty()) {
    const auto* const at = std::find(kLevelNames.begin(), kLevelNames.end(), own);
    if (at != kLevelNames.end()) return static_cast<Level>(at - kLevelNames.begin());
    TORCH_WARN(
        "horizon_plugin: HORIZON_CPU_CAPABILITY must be generic, avx2, avx512, vnni or amx, "
        "got '",
        own, "': it is ignored");
  }
  const std::string aten = lower_env("ATEN_CPU_CAPABILITY");
  if (aten == "default") return Level::kGeneric;
  if (aten == "avx2") return Level::kAvx2;
  // oneDNN's names of the sets without VNNI, lowest first, and of those without AMX. They limit its
  // convolutions alone, and so ours.
  const std::string limit = lower_env("ONEDNN_MAX_CPU_ISA");
  for (const char* without : {"sse41", "avx", "avx2", "avx2_vnni", "avx2_vnni_2", "avx512_core"}) {
    if (limit == without) return Level::kAvx512;
  }
  for (const char* without :
       {"avx512_core_vnni", "avx512_core_bf16", "avx512_core_fp16", "avx10_1_512"}) {
    if (limit == without) return Level::kVnni;
  }
  return Level::kAmx;
}

Level detect() {
  const Level level = std::min(machine_level(), allowed_level());
  return level == Level::kAmx && !machine_has_amx() ? Level::kVnni : level;
}

#else

Level detect() { return Level::kGeneric; }

#endif

Level level() {
  static const Level value = detect();
  return value;
}

}  // namespace

Capability capability() { return static_cast<Capability>(std::min(static_cast<int>(level()), 2)); }

bool has_vnni() { return level() >= Level::kVnni; }

bool has_amx() { return level() >= Level::kAmx; }

const char* capability_name() {
  if (has_amx()) return "avx512_amx";
  if (has_vnni()) return "avx512_vnni";
  return kLevelNames[static_cast<size_t>(level())];
}

}  // namespace horizon::cpu
