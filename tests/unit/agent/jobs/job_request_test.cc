#include "agent/jobs/job_request.h"

#include <set>

#include <gmock/gmock.h>

#include "agent/rendezvous/job_wire.h"

namespace accel::agent::job_request_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

v1::JobSpec small_job() {
  v1::JobSpec job;
  job.set_job_id("j1");
  job.add_argv("/bin/true");
  return job;
}

UserAccount ann() {
  return {.name = "ann",
          .home = "/home/ann",
          .shell = "/bin/sh",
          .credentials = {.uid = 1000, .gid = 1000, .groups = {}}};
}

TEST(JobRequest, EveryFaultIsNamed) {
  v1::JobSpec job;
  job.set_job_id("../etc");
  job.set_cwd("relative");
  job.set_tracking_dir("runs");
  job.set_min_nodes(3);
  job.set_max_nodes(2);
  job.mutable_stop()->set_signal(999);
  (*job.mutable_env())["A=B"] = "x";
  const auto checked = check_job_request(job);
  ASSERT_FALSE(checked);
  const std::string text = checked.error().render();
  for (const char* part : {"job_id '../etc'",
                           "argv names no program",
                           "cwd 'relative'",
                           "tracking_dir 'runs'",
                           "max_nodes 2 is below min_nodes 3",
                           "stop.signal 999",
                           "impossible variable"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

// It would stand for the job whose uuid it is.
TEST(JobRequest, ANameOfTheFormOfAUuidIsRefused) {
  v1::JobSpec job = small_job();
  for (const std::string& id :
       {std::string(32, 'a'), std::string(16, '0') + std::string(16, 'F')}) {
    job.set_job_id(id);
    const auto refused = check_job_request(job);
    ASSERT_FALSE(refused) << id;
    EXPECT_THAT(refused.error().message(), HasSubstr("has the form of a job's uuid"));
  }
  for (const std::string& id : {std::string(31, 'a'), std::string(33, 'a'), std::string(32, 'g')}) {
    job.set_job_id(id);
    EXPECT_TRUE(check_job_request(job)) << id;
  }
}

TEST(JobRequest, TheGraceOfAStopIsTheJobsOwnOrATimeThatMakesSense) {
  v1::StopReq stop;
  EXPECT_EQ(*grace_of(stop), std::nullopt);
  stop.mutable_grace()->set_nanos(500'000'000);
  EXPECT_EQ(*grace_of(stop), std::chrono::milliseconds(500));
  for (const std::int64_t seconds : {std::int64_t{-1}, std::int64_t{1} << 62}) {
    stop.mutable_grace()->set_seconds(seconds);
    const auto refused = grace_of(stop);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(refused.error().message(), HasSubstr(std::to_string(seconds) + " s"));
  }
}

TEST(JobRequest, VariablesThatSteerLoadingAreLeftOutForAnotherUser) {
  v1::JobSpec job = small_job();
  (*job.mutable_env())["LD_PRELOAD"] = "/tmp/evil.so";
  (*job.mutable_env())["GCONV_PATH"] = "/tmp";
  (*job.mutable_env())["MINE"] = "1";
  std::vector<std::string> scrubbed;
  const auto spec = make_job_spec(job, {}, ann(), "/logs", /*scrub=*/true, scrubbed);
  EXPECT_THAT(scrubbed, ElementsAre("GCONV_PATH", "LD_PRELOAD"));
  EXPECT_EQ(spec.env.count("LD_PRELOAD"), 0U);
  EXPECT_EQ(spec.env.at("MINE"), "1");
  EXPECT_EQ(spec.env.at("HOME"), "/home/ann");
  scrubbed.clear();
  EXPECT_EQ(
      make_job_spec(job, {}, ann(), "/logs", /*scrub=*/false, scrubbed).env.count("LD_PRELOAD"),
      1U);
}

TEST(JobRequest, RanksOfANodeFollowItsFirst) {
  std::vector<std::string> scrubbed;
  const LocalPart part = {
      .node_rank = 1, .num_nodes = 2, .first_rank = 4, .num_ranks = 2, .world_size = 6};
  const auto spec = make_job_spec(small_job(), part, ann(), "/logs", false, scrubbed);
  ASSERT_EQ(spec.workers.size(), 2U);
  EXPECT_EQ(spec.workers[1].global_rank, 5);
  EXPECT_EQ(spec.workers[1].local_rank, 1);
  EXPECT_EQ(spec.identity.world_size, 6);
  EXPECT_TRUE(supervisor::job_spec_from_json(supervisor::to_json(spec)));
}

TEST(JobRequest, HangsAreJudgedAsAsked) {
  v1::JobSpec job = small_job();
  std::vector<std::string> scrubbed;
  const auto made = [&] { return make_job_spec(job, {}, ann(), "/logs", false, scrubbed).hang; };
  EXPECT_EQ(made().mode, supervisor::HangMode::kOff);
  job.mutable_hang()->set_enabled(true);
  EXPECT_EQ(made().mode, supervisor::HangMode::kAuto);
  job.mutable_hang()->mutable_beat()->set_seconds(7);
  job.mutable_hang()->mutable_first_beat()->set_seconds(90);
  job.mutable_hang()->set_safety(5);
  EXPECT_EQ(made().mode, supervisor::HangMode::kFixed);
  EXPECT_EQ(made().timeout, std::chrono::seconds(7));
  EXPECT_EQ(made().first_beat, std::chrono::seconds(90));
  EXPECT_EQ(made().safety, 5);
  EXPECT_TRUE(check_job_request(job));
  job.mutable_hang()->mutable_beat()->set_seconds(0);
  EXPECT_FALSE(check_job_request(job));
}

TEST(JobRequest, LimitsReachTheShim) {
  v1::JobSpec job = small_job();
  job.mutable_limits()->set_mem_bytes(1 << 30);
  job.mutable_limits()->set_pids(99);
  job.mutable_limits()->set_nofile(512);
  job.mutable_limits()->set_core_bytes(1024);
  job.mutable_limits()->set_memlock(4096);
  std::vector<std::string> scrubbed;
  const auto made = make_job_spec(job, {}, ann(), "/logs", false, scrubbed);
  const auto back = supervisor::job_spec_from_json(supervisor::to_json(made));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->limits.memory_bytes, 1U << 30);
  EXPECT_EQ(back->limits.pids, 99U);
  EXPECT_EQ(back->limits.open_files, 512U);
  EXPECT_EQ(back->limits.core_bytes, 1024U);
  EXPECT_EQ(back->limits.locked_bytes, 4096U);
}

supervisor::JobSpec spec_of(const v1::JobSpec& job, int num_ranks) {
  std::vector<std::string> scrubbed;
  return make_job_spec(
      job, {.num_ranks = num_ranks, .world_size = num_ranks}, ann(), "/logs", false, scrubbed);
}

// No quota, unless one is given.
GrantedCpus granted(std::function<Result<Topology>(Caches)> topology,
                    std::optional<CpuQuota> quota = std::nullopt) {
  return {.topology = std::move(topology), .quota = [quota] { return quota; }};
}

TEST(JobRequest, ExclusiveCoresAreDividedAndReservedOnesLeftOut) {
  v1::JobSpec job = small_job();
  job.mutable_affinity()->set_mode(v1::Affinity::MODE_EXCLUSIVE);
  job.mutable_affinity()->set_reserve_cores(1);
  job.mutable_affinity()->set_set_omp(true);
  auto spec = spec_of(job, 2);
  const GrantedCpus machine = granted([](Caches) { return synthetic_topology("core:5 pu:2"); });

  ASSERT_TRUE(apply_affinity(job, machine, spec));

  EXPECT_THAT(spec.workers[0].cpus, ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(spec.workers[1].cpus, ElementsAre(6, 7, 8, 9));
  EXPECT_EQ(spec.workers[0].env.at("OMP_NUM_THREADS"), "2");
  job.mutable_affinity()->set_mode(v1::Affinity::MODE_NONE);
  spec = spec_of(job, 2);
  ASSERT_TRUE(apply_affinity(job, machine, spec));
  EXPECT_THAT(spec.workers[1].cpus, ElementsAre(2, 3, 4, 5, 6, 7, 8, 9));
  job.mutable_affinity()->set_reserve_cores(5);
  EXPECT_THAT(apply_affinity(job, machine, spec).error().message(),
              HasSubstr("5 cores are granted"));
}

// The node agent of a container, which may run on every core of its machine, for a part of the time.
TEST(JobRequest, AQuotaOfCpuTimeBoundsTheThreadsAndNotThePlaces) {
  v1::JobSpec job = small_job();
  job.mutable_affinity()->set_mode(v1::Affinity::MODE_EXCLUSIVE);
  job.mutable_affinity()->set_set_omp(true);
  const auto machine = [](Caches) { return synthetic_topology("core:8 pu:1"); };
  const auto threads_with = [&](double cpus, int num_workers) {
    auto spec = spec_of(job, num_workers);
    EXPECT_TRUE(
        apply_affinity(job, granted(machine, CpuQuota{.file = "cpu.max", .cpus = cpus}), spec));
    EXPECT_THAT(spec.workers[0].cpus, testing::SizeIs(8 / num_workers));
    return spec.workers[0].env.at("OMP_NUM_THREADS");
  };

  EXPECT_EQ(threads_with(5.5, 2), "2");
  EXPECT_EQ(threads_with(0.5, 2), "1");
  EXPECT_EQ(threads_with(64, 2), "4");
}

TEST(JobRequest, MemoryFollowsTheCoresAndIsBoundOnRequest) {
  v1::JobSpec job = small_job();
  job.mutable_affinity()->set_mode(v1::Affinity::MODE_SOCKET);
  const GrantedCpus machine =
      granted([](Caches) { return synthetic_topology("package:2 group:2 [numa] core:2 pu:1"); });
  auto spec = spec_of(job, 2);
  ASSERT_TRUE(apply_affinity(job, machine, spec));
  EXPECT_THAT(spec.workers[0].memory_nodes, testing::IsEmpty()) << "two nodes: no preference";

  job.mutable_affinity()->set_bind_memory(true);
  spec = spec_of(job, 2);
  ASSERT_TRUE(apply_affinity(job, machine, spec));
  EXPECT_THAT(spec.workers[1].memory_nodes, ElementsAre(2, 3));
  EXPECT_TRUE(spec.workers[1].bind_memory);

  job.mutable_affinity()->set_mode(v1::Affinity::MODE_NODE);
  job.mutable_affinity()->set_bind_memory(false);
  spec = spec_of(job, 4);
  ASSERT_TRUE(apply_affinity(job, machine, spec));
  EXPECT_THAT(spec.workers[3].memory_nodes, ElementsAre(3));
  EXPECT_FALSE(spec.workers[3].bind_memory);
  EXPECT_TRUE(supervisor::job_spec_from_json(supervisor::to_json(spec)));
}

TEST(JobRequest, CachesAreReadForTheModeThatNeedsThemAlone) {
  v1::JobSpec job = small_job();
  for (const auto mode : {v1::Affinity::MODE_L3, v1::Affinity::MODE_NODE}) {
    job.mutable_affinity()->set_mode(mode);
    auto spec = spec_of(job, 1);
    ASSERT_TRUE(apply_affinity(job,
                               granted([&](Caches caches) {
                                 EXPECT_EQ(caches == Caches::kRead, mode == v1::Affinity::MODE_L3);
                                 return synthetic_topology("package:1 [numa] l3:2 core:1 pu:1");
                               }),
                               spec));
    EXPECT_EQ(spec.workers[0].cpus.size(), mode == v1::Affinity::MODE_L3 ? 1U : 2U);
  }
}

TEST(JobRequest, BoundMemoryNeedsCores) {
  v1::JobSpec job = small_job();
  job.mutable_affinity()->set_bind_memory(true);
  EXPECT_THAT(check_job_request(job).error().message(), HasSubstr("affinity.bind_memory needs"));
  job.mutable_affinity()->set_mode(v1::Affinity::MODE_L3);
  EXPECT_TRUE(check_job_request(job));
  job.mutable_affinity()->set_mode(static_cast<v1::Affinity::Mode>(99));
  EXPECT_FALSE(check_job_request(job));
}

TEST(JobRequest, ChecksReachTheShimAndLengthenThePreparation) {
  v1::JobSpec job = small_job();
  v1::Check& check = *job.add_preflight();
  check.set_name("disk");
  for (const char* word : {"test", "-w", "/scratch"}) check.add_argv(word);
  EXPECT_TRUE(check_job_request(job));
  EXPECT_EQ(spec_of(job, 1).preflight.at(0).limit, std::chrono::seconds(30));
  check.mutable_timeout()->set_seconds(200);
  const auto made = spec_of(job, 1);

  EXPECT_EQ(made.preflight.at(0).name, "disk");
  EXPECT_THAT(made.preflight.at(0).argv, ElementsAre("test", "-w", "/scratch"));
  EXPECT_EQ(made.preflight.at(0).limit, std::chrono::seconds(200));
  EXPECT_TRUE(supervisor::job_spec_from_json(supervisor::to_json(made)));
  EXPECT_EQ(describe_job(job).prepare_limit, std::chrono::seconds(120 + 200));
  job.mutable_gather()->mutable_prepare_limit()->set_seconds(9);
  EXPECT_EQ(describe_job(job).prepare_limit, std::chrono::seconds(9));
}

TEST(JobRequest, Fault67TimesThatCannotBeMeantAreNamed) {
  v1::JobSpec job = small_job();
  job.mutable_gather()->mutable_prepare_limit()->set_seconds(-1);
  job.mutable_gather()->mutable_join_limit()->set_seconds(400LL * 86'400);
  job.mutable_fence()->mutable_lease()->set_nanos(-5);
  job.mutable_hang()->mutable_beat()->set_seconds(-7);
  const std::string text = check_job_request(job).error().render();
  for (const char* part : {"gather.prepare_limit is -1 s, expected 0 to 366 days",
                           "gather.join_limit is 34560000 s",
                           "fence.lease is 0 s",
                           "hang.beat is -7 s"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(JobRequest, ImpossibleChecksAreNamed) {
  v1::JobSpec job = small_job();
  job.add_preflight()->set_name("a b");
  job.mutable_preflight(0)->mutable_timeout();
  const std::string text = check_job_request(job).error().render();
  for (const char* part : {"preflight check 'a b' has no name of the form",
                           "preflight check 'a b' names no program",
                           "preflight check 'a b' has a timeout that is not above 0"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(JobRequest, RulesForStopsAndRestartsReachShimAndCoordinator) {
  v1::JobSpec job = small_job();
  EXPECT_EQ(spec_of(job, 1).restart.max_same_crash, 3);
  EXPECT_EQ(spec_of(job, 1).restart.jitter, 0.5);
  job.mutable_stop()->set_dump_stacks(true);
  job.mutable_stop()->set_preempt_signal(10);
  job.mutable_restart()->set_jitter(0.25);
  job.mutable_restart()->set_max_same_cause(7);
  (*job.mutable_restart()->mutable_on_cause())["HANG"] = v1::ACTION_FAIL;
  (*job.mutable_restart()->mutable_on_cause())["EXEC_FAILED"] = v1::ACTION_RESTART;
  ASSERT_TRUE(check_job_request(job));
  const auto made = spec_of(job, 1);

  EXPECT_TRUE(made.stop.dump_stacks);
  EXPECT_EQ(made.stop.preempt_signal, 10);
  EXPECT_EQ(made.restart.max_same_crash, 7);
  for (const auto& policy : {made.restart, describe_job(job).restart.budget}) {
    EXPECT_EQ(policy.jitter, 0.25);
    EXPECT_THAT(policy.fail_after, ElementsAre(supervisor::ExitCause::kHang));
    EXPECT_THAT(
        policy.restart_after,
        ElementsAre(supervisor::ExitCause::kExecFailed, supervisor::ExitCause::kLibraryMissing));
  }
  const auto back = supervisor::job_spec_from_json(supervisor::to_json(made));
  ASSERT_TRUE(back) << back.error().what();
  EXPECT_EQ(back->restart.fail_after, made.restart.fail_after);

  job.mutable_stop()->set_preempt_signal(999);
  job.mutable_restart()->set_jitter(1.5);
  (*job.mutable_restart()->mutable_on_cause())["OOM"] = v1::ACTION_IGNORE;
  (*job.mutable_restart()->mutable_on_cause())["MOON"] = v1::ACTION_FAIL;
  const std::string text = check_job_request(job).error().render();
  for (const char* part : {"stop.preempt_signal 999",
                           "restart.jitter is 1.5",
                           "IGNORE is not supported",
                           "restart.on_cause has 'MOON'"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(JobRequest, VariablesOfTheAgentArePassedToItsOwnUserAlone) {
  v1::JobSpec job = small_job();
  for (const char* name : {"PASSED", "OWN", "MISSING"}) job.add_env_pass(name);
  (*job.mutable_env())["OWN"] = "the job's";
  auto spec = spec_of(job, 1);
  const EnvMap variables = {{"PASSED", "1"}, {"OWN", "the agent's"}, {"SECRET", "x"}};
  const EnvLookup agents = [&](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(std::string(name));
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };

  ASSERT_TRUE(pass_environment(job, agents, /*is_other_user=*/false, spec));

  EXPECT_EQ(spec.env.at("PASSED"), "1");
  EXPECT_EQ(spec.env.at("OWN"), "the job's");
  EXPECT_FALSE(spec.env.contains("MISSING"));
  EXPECT_FALSE(spec.env.contains("SECRET"));
  EXPECT_EQ(pass_environment(job, agents, /*is_other_user=*/true, spec).error().code(),
            ErrorCode::kAgentRefused);
}

// ---- no field is ignored in silence ----

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Sets a field to something that is not its default.
void touch(Message& message, const FieldDescriptor& field) {
  const auto* reflection = message.GetReflection();
  if (field.is_map() || field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
    field.is_repeated() ? reflection->AddMessage(&message, &field)
                        : reflection->MutableMessage(&message, &field);
    return;
  }
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      field.is_repeated() ? reflection->AddString(&message, &field, "x")
                          : reflection->SetString(&message, &field, "x");
      break;
    case FieldDescriptor::CPPTYPE_ENUM:
      reflection->SetEnumValue(&message, &field, field.enum_type()->value_count() - 1);
      break;
    case FieldDescriptor::CPPTYPE_BOOL:
      reflection->SetBool(&message, &field, true);
      break;
    case FieldDescriptor::CPPTYPE_INT32:
      reflection->SetInt32(&message, &field, 1);
      break;
    case FieldDescriptor::CPPTYPE_UINT32:
      reflection->SetUInt32(&message, &field, 1);
      break;
    case FieldDescriptor::CPPTYPE_UINT64:
      reflection->SetUInt64(&message, &field, 1);
      break;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      reflection->SetDouble(&message, &field, 1);
      break;
    default:
      FAIL() << field.full_name() << " is of a kind that this test does not know";
  }
}

// A field that is added to JobSpec fails here until it works, is refused, or is the agent's to set.
TEST(JobRequest, NoFieldIsIgnoredInSilence) {
  const std::set<std::string> works = {"job_id",
                                       "min_nodes",
                                       "max_nodes",
                                       "procs_per_node",
                                       "argv",
                                       "env",
                                       "env_pass",
                                       "cwd",
                                       "restart",
                                       "stop",
                                       "hang",
                                       "affinity",
                                       "log",
                                       "tracking_dir",
                                       "limits",
                                       "restart.max_restarts",
                                       "restart.backoff_initial",
                                       "restart.backoff_max",
                                       "restart.reset_after_progress",
                                       "stop.signal",
                                       "stop.grace",
                                       "hang.enabled",
                                       "hang.first_beat",
                                       "hang.beat",
                                       "hang.auto",
                                       "hang.safety",
                                       "affinity.set_omp",
                                       "affinity.reserve_cores",
                                       "log.overflow",
                                       "log.rotate_bytes",
                                       "log.keep",
                                       "log.merge_stderr",
                                       "limits.mem_bytes",
                                       "limits.pids",
                                       "limits.nofile",
                                       "limits.core_bytes",
                                       "limits.memlock",
                                       "affinity.mode",
                                       "affinity.bind_memory",
                                       "preflight",
                                       "stop.dump_stacks",
                                       "stop.preempt_signal",
                                       "restart.max_same_cause",
                                       "restart.jitter",
                                       "restart.on_cause"};
  const std::set<std::string> set_by_the_agent = {"job_uuid", "user", "log.dir"};
  std::set<std::string> refused;
  std::set<std::string> ignored;
  const auto judge = [&](const v1::JobSpec& job, const std::string& name) {
    if (!check_job_request(job) || !check_one_node_request(job)) {
      refused.insert(name);
    } else if (!works.contains(name) && !set_by_the_agent.contains(name)) {
      ignored.insert(name);
    }
  };
  const auto* top = v1::JobSpec::descriptor();
  for (int i = 0; i < top->field_count(); ++i) {
    const FieldDescriptor& field = *top->field(i);
    v1::JobSpec job = small_job();
    touch(job, field);
    judge(job, field.name());
    const auto* inner = field.is_repeated() ? nullptr : field.message_type();
    for (int k = 0; inner != nullptr && k < inner->field_count(); ++k) {
      v1::JobSpec deeper = small_job();
      touch(*deeper.GetReflection()->MutableMessage(&deeper, &field), *inner->field(k));
      judge(deeper, field.name() + "." + inner->field(k)->name());
    }
  }
  EXPECT_THAT(ignored, testing::IsEmpty());
  EXPECT_THAT(refused,
              testing::IsSupersetOf({"hang.section", "fence", "gather", "restart.scale_up"}));
}

TEST(JobRequest, Fault26RotationReachesTheWorkersAndItsLimitsAreNamed) {
  v1::JobSpec job = small_job();
  job.mutable_log()->set_rotate_bytes(1 << 20);
  std::vector<std::string> scrubbed;
  ASSERT_TRUE(check_job_request(job));
  EXPECT_EQ(make_job_spec(job, {}, ann(), "/logs", false, scrubbed).log.rotation.keep, 8);
  job.mutable_log()->set_keep(3);
  const auto spec = make_job_spec(job, {}, ann(), "/logs", false, scrubbed);
  EXPECT_EQ(spec.log.rotation.bytes, 1U << 20);
  EXPECT_EQ(spec.log.rotation.keep, 3);

  job.mutable_log()->set_rotate_bytes(100);
  job.mutable_log()->set_keep(1001);
  EXPECT_THAT(check_job_request(job).error().render(),
              testing::AllOf(HasSubstr("log.rotate_bytes is 100, below 4096"),
                             HasSubstr("log.keep is 1001, above 1000")));
  job.mutable_log()->clear_rotate_bytes();
  EXPECT_THAT(check_job_request(job).error().render(),
              HasSubstr("log.keep is for log.rotate_bytes"));
}

TEST(JobRequest, OverflowAndMergedStreamsReachTheWorkers) {
  using supervisor::Overflow;
  std::vector<std::string> scrubbed;
  const auto log_of = [&](v1::LogPolicy::Overflow asked) {
    v1::JobSpec job = small_job();
    job.mutable_log()->set_overflow(asked);
    job.mutable_log()->set_merge_stderr(asked == v1::LogPolicy::OVERFLOW_DROP);
    EXPECT_TRUE(check_job_request(job));
    return make_job_spec(job, {}, ann(), "/logs", false, scrubbed).log;
  };
  EXPECT_EQ(log_of(v1::LogPolicy::OVERFLOW_UNSPECIFIED).overflow, Overflow::kBlock);
  EXPECT_EQ(log_of(v1::LogPolicy::OVERFLOW_BLOCK).overflow, Overflow::kBlock);
  EXPECT_EQ(log_of(v1::LogPolicy::OVERFLOW_SAMPLE).overflow, Overflow::kSample);
  EXPECT_FALSE(log_of(v1::LogPolicy::OVERFLOW_SAMPLE).merge_stderr);
  EXPECT_EQ(log_of(v1::LogPolicy::OVERFLOW_DROP).overflow, Overflow::kDrop);
  EXPECT_TRUE(log_of(v1::LogPolicy::OVERFLOW_DROP).merge_stderr);
}

TEST(JobRequest, AMadeIdIsValid) {
  v1::JobSpec job;
  job.add_argv("/opt/my app/run it!.py");
  job.set_job_id(make_job_id(job));
  EXPECT_TRUE(check_job_request(job)) << job.job_id();
}

}  // namespace
}  // namespace accel::agent::job_request_test
