// Export: marks what the installed shared libraries offer; everything else stays hidden.
#pragma once

#define ACCEL_EXPORT __attribute__((visibility("default")))
