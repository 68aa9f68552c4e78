# Compile options that every target shares.
#
# Contraction is off everywhere: a fused multiply-add happens only where std::fma is written, so
# that every instruction set gives the same bits (docs/numerics.md).

add_library(horizon_warnings INTERFACE)
target_compile_options(
  horizon_warnings
  INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wno-unused-parameter
            -ffp-contract=off -fno-math-errno $<$<BOOL:${HORIZON_WERROR}>:-Werror>>)
