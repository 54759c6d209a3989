// How long tests wait for what must come in the end.
#pragma once

namespace trainer {

/// Multiplies such waits: under the thread sanitizer everything takes many times as long.
#ifdef __SANITIZE_THREAD__
constexpr int patience = 10;
#else
constexpr int patience = 1;
#endif

}  // namespace trainer
