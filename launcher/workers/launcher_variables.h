// LauncherVariables: what launchers tell one another through the environment. Workers do not see them.
#pragma once

namespace accel::launcher {

// The job's folder, for a launcher that srun started on a node.
inline constexpr const char* kSlurmFolderVariable = "ACCEL_SLURM_FOLDER";

// The secret of a job on several machines, or a file (0600) that holds it.
inline constexpr const char* kJobTokenVariable = "ACCEL_JOB_TOKEN";
inline constexpr const char* kJobTokenFileVariable = "ACCEL_JOB_TOKEN_FILE";

}  // namespace accel::launcher
