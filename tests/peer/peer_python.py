"""Where source, build and the peer's Python are; importing this runs the script under that Python.

A script that is started with another Python is replaced by itself under the peer's, which has torch,
accelerate and safetensors. Without the peer it ends with 77, which ctest takes as skipped. So this comes before
the imports that only the peer has.
"""
import os
import sys

SOURCE = os.environ.get("ACCEL_SOURCE_DIR", os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))
BUILD = os.environ.get("ACCEL_BUILD_DIR", os.path.join(SOURCE, "build"))
PEER = os.path.join(SOURCE, ".deps/peer/bin/python")

if not os.path.exists(PEER):
    print(f"skipped: {PEER} is missing; run scripts/setup.sh")
    sys.exit(77)
if os.path.realpath(sys.prefix) != os.path.realpath(os.path.join(SOURCE, ".deps/peer")):
    os.execv(PEER, [PEER] + sys.argv)
