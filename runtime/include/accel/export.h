// Export: marks the public symbols of the installed shared libraries; all others are hidden.
#pragma once

#define ACCEL_EXPORT __attribute__((visibility("default")))
