// The one entry point of libaccel_cluster.so; see launcher/cluster_library.h for who opens it.
#pragma once

// `argv` as of a program: argv[1] is the command. Gives the exit status.
extern "C" int accel_cluster_main(int argc, const char* const* argv);
