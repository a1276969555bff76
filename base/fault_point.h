// Named points at which a test can make a rank fail. Always compiled in; one untaken branch when unarmed.
//
// Armed by the environment: LTRAIN_FAULT="point:rank:occurrence:action[,...]", e.g. "step.begin:1:3:kill"
// kills rank 1 when it reaches step.begin for the third time. rank may be * (any), and
// occurrence * (each). Actions: kill, stop, abort, exit[=code], error, sleep=milliseconds, hang; and nan,
// skip, corrupt, which the code at the point carries out.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ltrain {

enum class FaultAction : uint8_t { none, nan, skip, corrupt };  ///< action for the caller to carry out

/// Every fault point of the program. LT_FAULT_POINT with any other name does not compile.
inline constexpr std::string_view kFaultPoints[] = {
    "launch.join",              // before this rank connects to the coordinator
    "launch.section",           // entering a section (set-up, step, save, eval)
    "launch.finish",            // before the goodbye
    "collective.enter",         // issuing a collective: skip leaves it out, corrupt changes its element count
    "train.step",               // each training step, before its data is read
    "train.batch",              // each micro-batch of a step, before its data is read
    "data.read",                // the thread that reads data, before each micro-batch
    "eval.batch",               // each batch of an evaluation, before its data is read
    "train.loss",               // nan: makes the step's loss and gradients NaN
    "replicas.sum",             // before a sum over replicas
    "replicas.vote",            // a replica's sums of a step are complete, before it votes
    "replicas.voted",           // the step counts for all, before this rank applies it
    "replicas.copy",            // before a tensor is copied from one replica to others
    "offload.store",            // skip: acts as if the disk were full when offloaded data is written
    "selftest.step",            // each step of `ltrain selftest allreduce`; before kernels are compared
    "checkpoint.snapshot",      // a save begins, before the state is copied
    "checkpoint.before_open",   // the folder of the save exists, the rank's shard does not
    "checkpoint.mid_write",     // half of the rank's shard is written
    "checkpoint.before_fsync",  // the full shard is written
    "checkpoint.after_fsync",   // the shard is on the disk
    "checkpoint.before_manifest",  // rank 0: all shards exist
    "checkpoint.after_manifest",   // rank 0: the manifest is on the disk
    "checkpoint.before_rename",    // rank 0: the commit record is on the disk, too
    // rank 0: a folder has the name already, or belongs to an abandoned branch
    "checkpoint.before_set_aside",
    "checkpoint.after_set_aside",  // rank 0: that folder has another name
    "checkpoint.after_rename",     // rank 0: the checkpoint has its name
    "checkpoint.committed",        // rank 0: the name is on the disk
    "checkpoint.before_delete",    // rank 0: rotation is about to delete an old one
    "checkpoint.mid_delete",       // rank 0: the old one has lost its name, but still has its files
    "remote.before_commit",        // rank 0: an upload has all files but COMMIT
    "checkpoint.done",             // every rank knows the result
};

consteval int fault_point_index(std::string_view name) {
  int i = 0;
  for (std::string_view known : kFaultPoints) {
    if (known == name) return i;
    ++i;
  }
  throw "fault point is not in kFaultPoints";  // never reached at run time
}

extern bool faults_armed;
FaultAction fault_point_reached(int index);

/// Carries out the fault armed for this point, if any, and returns the action that is left for the caller.
#define LT_FAULT_POINT(name)                                                        \
  (__builtin_expect(::ltrain::faults_armed, 0) ? ::ltrain::fault_point_reached([] { \
    constexpr int index = ::ltrain::fault_point_index(name);                        \
    return index;                                                                   \
  }())                                                                              \
                                               : ::ltrain::FaultAction::none)

/// Parses a specification; throws with ExitCode::usage on an unknown point or action. Empty disarms. main()
/// calls it with LTRAIN_FAULT.
void arm_faults(const std::string& specification);
/// Sets the rank that faults are matched against; LTRAIN_RANK until the job is joined.
void set_fault_rank(int rank);

}  // namespace ltrain
