#include "launcher/start/mpi/mpi_launch.h"

#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/config/config_file.h"
#include "tests/support/launch_plan_fixture.h"

namespace accel::launcher::mpi_launch_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

const MpiProgram kIntel{"mpirun", MpiFamily::kHydra};
const MpiProgram kOpen{"mpirun", MpiFamily::kOpenMpi};

MpiRequest four_machines() {
  return {.hostfile = "/hosts",
          .num_machines = 4,
          .num_processes = 16,
          .main_address = "10.0.0.1",
          .main_port = 29500};
}

TEST(MpiLaunch, TheFamilyIsReadFromTheVersion) {
  EXPECT_EQ(mpi_family("mpirun (Open MPI) 4.1.4\n\nReport bugs to ..."), MpiFamily::kOpenMpi);
  EXPECT_EQ(mpi_family("Intel(R) MPI Library for Linux* OS, Version 2021.13"), MpiFamily::kHydra);
  EXPECT_EQ(mpi_family("HYDRA build details:\n    Version: 4.1"), MpiFamily::kHydra);
}

TEST(MpiLaunch, SaysTheWordsOfEachFamily) {
  const MpiSettings settings = or_throw(plan_mpi(four_machines()));

  EXPECT_THAT(
      mpirun_words(settings, kIntel, {"python", "S", "--cpu"}),
      ElementsAre("mpirun", "-f", "/hosts", "-ppn", "4", "-n", "16", "python", "S", "--cpu"));
  EXPECT_THAT(mpirun_words(settings, kOpen, {"python", "S"}),
              ElementsAre("mpirun",
                          "--hostfile",
                          "/hosts",
                          "--npernode",
                          "4",
                          "-n",
                          "16",
                          "--bind-to",
                          "socket",
                          "python",
                          "S"));
}

TEST(MpiLaunch, WithoutANumberEachHostHasOneRank) {
  const MpiSettings settings = or_throw(plan_mpi({.hostfile = "H"}));

  EXPECT_THAT(mpirun_words(settings, kIntel, {"S"}),
              ElementsAre("mpirun", "-f", "H", "-ppn", "1", "S"));
}

TEST(MpiLaunch, RanksThatDoNotDivideFillTheSlotsOfTheHostfile) {
  MpiRequest request = four_machines();
  request.num_processes = 15;
  const MpiSettings settings = or_throw(plan_mpi(request));

  EXPECT_THAT(mpirun_words(settings, kIntel, {"S"}),
              ElementsAre("mpirun", "-f", "/hosts", "-n", "15", "S"));
  EXPECT_THAT(
      mpirun_words(settings, kOpen, {"S"}),
      ElementsAre("mpirun", "--hostfile", "/hosts", "-n", "15", "--bind-to", "socket", "S"));
  EXPECT_EQ(settings.num_on_machine(), 4);
}

TEST(MpiLaunch, RefusesWhatMachinesCannotAgreeOn) {
  const auto refused = [](auto change) {
    MpiRequest request = four_machines();
    change(request);
    const auto planned = plan_mpi(request);
    if (planned) throw std::logic_error("it was planned");
    EXPECT_FALSE(planned.error().remedy().empty());
    return planned.error().message();
  };

  EXPECT_EQ(refused([](MpiRequest& request) { request.main_address.reset(); }),
            "When using multiple machines, you need to specify the main process IP.");
  EXPECT_EQ(refused([](MpiRequest& request) { request.main_port.reset(); }),
            "When using multiple machines, you need to specify the main process port.");
  EXPECT_THAT(refused([](MpiRequest& request) { request.main_port = 0; }), HasSubstr("beforehand"));
}

TEST(MpiLaunch, OpenMpiIsToldWhichVariablesGoToOtherHosts) {
  const EnvMap inherited = {{"HOME", "/root"}, {"OMP_NUM_THREADS", "8"}};
  const MpiSettings settings = or_throw(plan_mpi(four_machines()));
  EnvMap open = {{"ACCELERATE_USE_CPU", "True"}, {"HOME", "/root"}, {"OMP_NUM_THREADS", "2"}};
  EnvMap intel = open;

  add_mpi_environment(open, inherited, {}, settings, kOpen);
  add_mpi_environment(intel, inherited, {}, settings, kIntel);

  EXPECT_THAT(open,
              AllOf(Contains(Pair("MASTER_ADDR", "10.0.0.1")),
                    Contains(Pair("MASTER_PORT", "29500")),
                    Contains(Pair("OMPI_MCA_mca_base_env_list",
                                  "ACCELERATE_USE_CPU;MASTER_ADDR;MASTER_PORT;OMP_NUM_THREADS"))));
  EXPECT_THAT(intel, Contains(Key("MASTER_ADDR")));
  EXPECT_THAT(intel, Not(Contains(Key("OMPI_MCA_mca_base_env_list"))));
}

TEST(MpiLaunch, NamesThatTheUserExportsStay) {
  const EnvMap inherited = {{"OMPI_MCA_mca_base_env_list", "TOKEN"}};
  EnvMap env = inherited;
  add_mpi_environment(
      env, inherited, {}, or_throw(plan_mpi({.hostfile = "H", .num_processes = 2})), kOpen);

  EXPECT_EQ(env.at("OMPI_MCA_mca_base_env_list"), "TOKEN;MASTER_ADDR;MASTER_PORT");
}

class MpiPlan : public test::LaunchPlanFixture {
 protected:
  MpiPlan() {
    host_.mpi_program = [this] { return Result<MpiProgram>(program_of_mpi_); };
  }
  MpiProgram program_of_mpi_ = kIntel;
};

TEST_F(MpiPlan, TheFixtureOfThePeerBecomesOneProcessOfMpirun) {
  const std::string path =
      std::string(std::getenv("ACCEL_SOURCE_DIR")) + "/tests/unit/launcher/configs/0_28_0_mpi.yaml";
  const LaunchPlan result =
      or_throw(resolve_launch({"--config_file", path, script_, "--cpu"}, host_));

  ASSERT_EQ(result.spec.workers.size(), 1U);
  EXPECT_THAT(result.spec.workers[0].argv,
              ElementsAre("mpirun",
                          "-f",
                          "/home/user/hostfile",
                          "-ppn",
                          "4",
                          "-n",
                          "16",
                          python_,
                          "-u",
                          script_,
                          "--cpu"));
  EXPECT_TRUE(result.spec.workers[0].is_starter);
  EXPECT_FALSE(result.spec.store.enabled);
  EXPECT_EQ(result.spec.env_mode, EnvMode::kSimple);
  EXPECT_EQ(result.spec.env.at("MASTER_ADDR"), "127.0.0.1");
  EXPECT_EQ(result.spec.env.at("ACCELERATE_USE_CPU"), "True");
  EXPECT_THAT(result.worker_names, ElementsAre("mpirun"));
}

TEST_F(MpiPlan, ThreadsAreTheCoresDividedByTheRanksOfAMachine) {
  const LaunchPlan result = plan({"--cpu", "--mpirun_hostfile", "H", "--num_processes", "4"});
  EXPECT_EQ(start_of<MpiSettings>(result)->hostfile, "H");

  EXPECT_EQ(result.spec.env.at("OMP_NUM_THREADS"), "2");
  EXPECT_THAT(result.spec.workers[0].env, IsEmpty());
}

TEST_F(MpiPlan, AWayOfItsOwnAndMpirunExcludeEachOther) {
  EXPECT_THAT(refused({"--mpirun_hostfile", "H", "--use_fsdp"}).message(),
              HasSubstr("--mpirun_hostfile cannot be used with --use_fsdp"));
  EXPECT_THAT(refused({"--mpirun_hostfile", "H", "--tpu"}).message(),
              HasSubstr("--mpirun_hostfile cannot be used with --tpu"));
  EXPECT_THAT(refused({"--mpirun_hostfile", "", "--cpu"}).message(), HasSubstr("empty"));

  num_gpus_ = 2;
  Words words = file(
      "distributed_type: MULTI_GPU\nnum_processes: 2\nmpirun_config:\n  mpirun_hostfile: H\n"
      "  mpirun_ccl: 1\n");
  const LaunchPlan result = plan(words);
  EXPECT_EQ(result.spec.workers.size(), 2U);
  EXPECT_THAT(
      result.notices,
      AllOf(Contains(HasSubstr("mpirun_config has no effect with distributed_type MULTI_GPU")),
            Contains(HasSubstr("mpirun_ccl has no effect"))));
}

TEST_F(MpiPlan, WithoutMpirunTheErrorSaysWhatToInstall) {
  host_.environment["PATH"] = folder_.file("empty");
  const auto program = find_mpi_program(host_.environment);

  ASSERT_FALSE(program);
  EXPECT_EQ(program.error().code(), ErrorCode::kExecFailed);
  EXPECT_THAT(program.error().remedy(), HasSubstr("openmpi-bin"));
}

TEST_F(MpiPlan, MpiexecIsTakenWhereThereIsNoMpirun) {
  folder_.write("mpi/mpiexec", "#!/bin/sh\necho 'mpiexec (Open MPI) 5.0.1'\n", true);
  host_.environment["PATH"] = folder_.file("mpi");
  const MpiProgram program = or_throw(find_mpi_program(host_.environment));

  EXPECT_EQ(program.name, "mpiexec");
  EXPECT_EQ(program.family, MpiFamily::kOpenMpi);
}

TEST(MpiHostfile, ThatIsNotThereIsToldBeforeMpirunStarts) {
  const test::ScratchFolder folder;
  const std::string path = folder.write("hosts", "localhost slots=2\n");

  EXPECT_TRUE(check_mpi_hostfile(path));
  EXPECT_THAT(check_mpi_hostfile("nope").error().message(),
              HasSubstr("cannot open the hostfile of mpirun, nope: No such file or directory"));
  EXPECT_THAT(check_mpi_hostfile(folder.path()).error().message(), HasSubstr("it is a folder"));
}

}  // namespace
}  // namespace accel::launcher::mpi_launch_test
