// Modules written as files of torch.export: what ExportedModel makes of them, and what is refused.
//
// tests/peer/cpp_export.py opens such files in PyTorch. Here modules call operators directly, so that no test needs all of torch::nn.

#include <csignal>
#include <fstream>
#include <iterator>
#include <thread>

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <accel/error.h>
#include <accel/export_model.h>
#include <accel/exported_model.h>
#include <accel/safetensors_file.h>

#include "libaccel/exported/archive.h"
#include "libaccel/exported/graph_reader.h"
#include "tests/support/error_of.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/tensor_matchers.h"

namespace accel::export_model_test {
namespace {

using test::error_of;
using test::SameTensor;
using test::ScratchFolder;

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

using Tensors = std::vector<at::Tensor>;

// Two layers with dropout, and a buffer that counts calls in training.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    auto up = register_module("up", std::make_shared<Part>());
    weight = up->register_parameter("weight", at::randn({4, 3}));
    bias = register_parameter("bias", at::randn({4}));
    count = register_buffer("count", at::zeros({}, at::kLong));
  }
  at::Tensor forward(const at::Tensor& x) {
    if (is_training()) count.add_(1);
    return at::dropout(at::relu(at::linear(x, weight, bias)), 0.5, is_training());
  }
  struct Part : torch::nn::Module {
    Part() : torch::nn::Module("my::PartImpl") {}
  };
  at::Tensor weight;
  at::Tensor bias;
  at::Tensor count;
};
TORCH_MODULE(Net);

// A module whose forward is the test's.
struct BareImpl : torch::nn::Module {
  BareImpl() { weight = register_parameter("weight", at::randn({3})); }
  at::Tensor weight;
};
TORCH_MODULE(Bare);

at::Tensor example() {
  return at::arange(6, at::kFloat).view({2, 3}) - 2.5;
}

class ExportModel : public ::testing::Test {
 protected:
  ExportModel() { at::manual_seed(3); }

  std::string file(const std::string& name = "net.pt2") const { return folder_.file(name); }

  // Of a function of one input and the parameter `weight`.
  ExportReport write(
      const std::function<at::Tensor(const at::Tensor& x, const at::Tensor& weight)>& function,
      ExportOptions options = {}) {
    return export_model(
        *bare_,
        [&](const Tensors& in) { return Tensors{function(in[0], bare_->weight)}; },
        {example()},
        file(),
        options);
  }
  Error refusal(
      const std::function<at::Tensor(const at::Tensor& x, const at::Tensor& weight)>& function,
      const ExportOptions& options = {}) {
    return error_of([&] { (void)write(function, options); });
  }

  ScratchFolder folder_;
  Bare bare_;
};

TEST_F(ExportModel, HasTheModulesNamesModesAndBits) {
  Net net;
  export_model(net, std::make_tuple(example()), file());

  ExportedModel loaded(file());
  EXPECT_THAT(loaded->named_parameters().keys(), ElementsAre("bias", "up.weight"));
  EXPECT_THAT(loaded->named_buffers().keys(), ElementsAre("count"));
  EXPECT_EQ(loaded->name(), "accel.export_model_test.Net");
  for (const bool is_training : {true, false}) {
    net->train(is_training);
    loaded->train(is_training);
    at::manual_seed(5);
    const at::Tensor expected = net(example());
    expected.sum().backward();
    at::manual_seed(5);
    const at::Tensor found = loaded(example());
    found.sum().backward();
    EXPECT_THAT(found, SameTensor(expected));
  }
  EXPECT_THAT(loaded->named_parameters()["up.weight"].grad(), SameTensor(net->weight.grad()));
  EXPECT_THAT(loaded->named_buffers()["count"], SameTensor(net->count));
}

TEST_F(ExportModel, LeavesTheModuleAsItWas) {
  Net net;
  net->train();
  const at::Tensor state = at::globalContext().defaultGenerator(at::kCPU).get_state();

  export_model(net, std::make_tuple(example()), file());

  EXPECT_TRUE(net->is_training());
  EXPECT_EQ(net->count.item<std::int64_t>(), 0);
  EXPECT_FALSE(net->weight.grad().defined());
  EXPECT_THAT(at::globalContext().defaultGenerator(at::kCPU).get_state(), SameTensor(state));
}

TEST_F(ExportModel, NamesInputsAndOutputs) {
  export_model(*bare_,
               [&](const Tensors& in) {
                 return Tensors{in[0] + in[1], in[0] * bare_->weight};
               },
               {example(), example()},
               file(),
               {.input_names = {"left", "right"}, .output_names = {"sum", "product"}});

  ExportedModel loaded(file());
  EXPECT_THAT(loaded->input_names(), ElementsAre("left", "right"));
  const ExportedOutputs outputs =
      loaded(ExportedInputs{{"right", example()}, {"left", example() * 2}});
  EXPECT_THAT(outputs["sum"], SameTensor(example() * 3));
  EXPECT_THAT(outputs["product"], SameTensor(example() * 2 * bare_->weight));
}

TEST_F(ExportModel, KeepsTiedParametersOne) {
  const auto tied = bare_->register_module("tied", std::make_shared<NetImpl::Part>());
  tied->register_parameter("weight", bare_->weight);
  write([](const at::Tensor& x, const at::Tensor& w) { return x * w; });

  ExportedModel loaded(file());
  const auto parameters = loaded->named_parameters();
  EXPECT_TRUE(parameters["weight"].is_same(parameters["tied.weight"]));
}

TEST_F(ExportModel, KeepsOperatorsWithoutAutogradWithoutIt) {
  write([](const at::Tensor& x, const at::Tensor& w) {
    at::Tensor scale;
    {
      const at::NoGradGuard no_grad;
      scale = w.abs().sum();
    }
    return x * w * scale * w.data().exp();
  });

  ExportedModel loaded(file());
  const at::Tensor found = loaded(example());
  found.sum().backward();
  const at::Tensor scale = bare_->weight.detach().abs().sum();
  (example() * bare_->weight * scale * bare_->weight.detach().exp()).sum().backward();
  EXPECT_THAT(loaded->named_parameters()["weight"].grad(), SameTensor(bare_->weight.grad()));
}

TEST_F(ExportModel, LiftsTensorsThatNothingHasMade) {
  const at::Tensor outside = at::randn({3});
  const ExportReport report =
      write([&](const at::Tensor& x, const at::Tensor& w) { return x * w + outside; });

  EXPECT_THAT(report.constants, ElementsAre("lifted_tensor_0 Float [3]"));
  ExportedModel loaded(file());
  const at::Tensor found = loaded(example());
  EXPECT_THAT(found.detach(), SameTensor((example() * bare_->weight + outside).detach()));
}

TEST_F(ExportModel, LiftsMemoryThatIsFilledByNoOperator) {
  write([&](const at::Tensor& x, const at::Tensor& w) {
    const at::Tensor filled = at::empty({3});
    for (int i = 0; i < 3; ++i) filled.mutable_data_ptr<float>()[i] = static_cast<float>(i);
    return x * w + filled;
  });

  ExportedModel loaded(file());
  const at::Tensor found = loaded(example());
  EXPECT_THAT(found.detach(),
              SameTensor((example() * bare_->weight + at::arange(3, at::kFloat)).detach()));
}

TEST_F(ExportModel, RefusesDecisionsOnValues) {
  const Error error = refusal([](const at::Tensor& x, const at::Tensor& w) {
    return x.sum().item<float>() > 0 ? x * w : x + w;
  });

  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.message(), AllOf(HasSubstr("aten::item"), HasSubstr("decided for good")));
  EXPECT_FALSE(fs::exists(file()));
}

TEST_F(ExportModel, TakesDecisionsThatSizesMake) {
  write([](const at::Tensor& x, const at::Tensor& w) {
    return x.equal(x) && !x.equal(w) ? x * w : x + w;
  });
  EXPECT_THAT(refusal([](const at::Tensor& x, const at::Tensor& w) {
                return x.equal(x * 1) ? x * w : x + w;
              }).message(),
              HasSubstr("aten::equal"));
}

TEST_F(ExportModel, TakesDecisionsThatTheCallerVouchesFor) {
  write([](const at::Tensor& x, const at::Tensor& w) { return x.equal(x * 1) ? x * w : x + w; },
        {.decided_operators = {"aten::equal"}});
  ExportedModel loaded(file());
  const at::Tensor found = loaded(example());
  EXPECT_THAT(found.detach(), SameTensor((example() * bare_->weight).detach()));
}

TEST_F(ExportModel, RefusesSizesThatDependOnValues) {
  EXPECT_THAT(refusal([](const at::Tensor& x, const at::Tensor& w) {
                return (x * w).index({x > 0});
              }).message(),
              AllOf(HasSubstr("aten::index"), HasSubstr("depends on values")));
  EXPECT_THAT(refusal([](const at::Tensor& x, const at::Tensor& w) {
                return x.nonzero().to(at::kFloat).sum() + w;
              }).message(),
              HasSubstr("aten::nonzero"));
}

TEST_F(ExportModel, FindsDecisionsThatNoOperatorShows) {
  const Error error = refusal([](const at::Tensor& x, const at::Tensor& w) {
    return x.const_data_ptr<float>()[0] > 0 ? x * w : x + w;
  });

  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.message(),
              AllOf(HasSubstr("output output differs"), HasSubstr("in reverse order")));
  EXPECT_NO_THROW((void)write(
      [](const at::Tensor& x, const at::Tensor& w) {
        return x.const_data_ptr<float>()[0] > 0 ? x * w : x + w;
      },
      {.check = false}));
}

TEST_F(ExportModel, FindsWhatAnotherThreadComputes) {
  const Error error = refusal([](const at::Tensor& x, const at::Tensor& w) {
    at::Tensor half;
    std::thread([&] { half = x.detach() / 2; }).join();
    return x * w + half;
  });
  EXPECT_THAT(error.message(), HasSubstr("does not compute what the module computes"));
}

struct Cube : torch::autograd::Function<Cube> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return x * x * x;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const at::Tensor x = context->get_saved_variables()[0];
    return {gradients[0] * 3 * x * x};
  }
};

TEST_F(ExportModel, RefusesDerivativesThatNoOperatorHas) {
  const Error error =
      refusal([](const at::Tensor& x, const at::Tensor& w) { return Cube::apply(w) * x; });

  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.message(), HasSubstr("torch::autograd::Function"));
}

TEST_F(ExportModel, RefusesParametersThatAreNotRegistered) {
  const at::Tensor other = at::randn({3}).requires_grad_();
  EXPECT_THAT(
      refusal([&](const at::Tensor& x, const at::Tensor& w) { return x * w * other; }).message(),
      HasSubstr("neither a parameter of the module"));
  const at::Tensor derived = other * 2;
  EXPECT_THAT(
      refusal([&](const at::Tensor& x, const at::Tensor& w) { return x * w * derived; }).message(),
      HasSubstr("neither a parameter of the module"));
}

TEST_F(ExportModel, RefusesWritesToParametersAndConstants) {
  EXPECT_THAT(refusal([](const at::Tensor& x, const at::Tensor& w) {
                const at::NoGradGuard no_grad;
                w.mul_(0.5);
                return x * w;
              }).message(),
              HasSubstr("writes to the parameter weight"));
  const at::Tensor outside = at::zeros({3});
  EXPECT_THAT(refusal([&](const at::Tensor& x, const at::Tensor& w) {
                outside.add_(1);
                return x * w + outside;
              }).message(),
              HasSubstr("writes to the constant"));
}

TEST_F(ExportModel, RefusesBackwardsAndAutocast) {
  EXPECT_THAT(refusal([](const at::Tensor& x, const at::Tensor& w) {
                const at::Tensor y = (x * w).sum();
                return torch::autograd::grad({y}, {w})[0];
              }).message(),
              HasSubstr("runs a backward"));
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const Error error = refusal([](const at::Tensor& x, const at::Tensor& w) { return x * w; });
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_THAT(error.message(), HasSubstr("autocast is on"));
}

TEST_F(ExportModel, RefusesNamesThatPythonCannotHave) {
  const auto write_named = [&](std::vector<std::string> inputs, std::vector<std::string> outputs) {
    return error_of([&] {
      (void)export_model(*bare_,
                         [&](const Tensors& in) { return Tensors{in[0] * bare_->weight}; },
                         {example()},
                         file(),
                         {.input_names = std::move(inputs), .output_names = std::move(outputs)});
    });
  };
  EXPECT_THAT(write_named({"class"}, {}).message(), HasSubstr("called class"));
  EXPECT_THAT(write_named({"2x"}, {}).message(), HasSubstr("called 2x"));
  EXPECT_THAT(write_named({"a", "b"}, {}).message(), HasSubstr("2 names for 1 inputs"));
  EXPECT_THAT(write_named({"a"}, {"b", "c"}).message(), HasSubstr("2 names for 1 outputs"));
  EXPECT_EQ(write_named({"class"}, {}).code(), ErrorCode::kInvalidArgument);
}

TEST_F(ExportModel, KeepsNamesOfInputsApartFromThoseOfParametersAndNodes) {
  export_model(*bare_,
               [&](const Tensors& in) { return Tensors{at::mul(in[0], bare_->weight) + in[1]}; },
               {example(), example()},
               file(),
               {.input_names = {"p_weight", "mul"}});

  ExportedModel loaded(file());
  EXPECT_THAT(loaded->input_names(), ElementsAre("p_weight", "mul"));
  const at::Tensor found = loaded(example(), example());
  EXPECT_THAT(found.detach(), SameTensor((example() * bare_->weight + example()).detach()));
}

TEST_F(ExportModel, WritesValuesBeside) {
  write([](const at::Tensor& x, const at::Tensor& w) { return x * w; },
        {.weights = ExportWeights::kBeside});

  EXPECT_THAT(safetensors::load_file(file("model.safetensors"))["weight"],
              SameTensor(bare_->weight.detach()));
  ExportedModel loaded(file());
  EXPECT_THAT(loaded->named_parameters()["weight"].detach(), SameTensor(bare_->weight.detach()));
}

TEST_F(ExportModel, LeavesTheOldFileWhereTheNewOneCannotBeWritten) {
  const auto multiply = [](const at::Tensor& x, const at::Tensor& w) { return x * w; };
  write(multiply);
  const auto text = [&] {
    std::ifstream in(file(), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  const std::string before = text();

  EXPECT_THAT(refusal([](const at::Tensor& x, const at::Tensor& w) {
                return x * w * x.sum().item();
              }).message(),
              HasSubstr("aten::item"));
  EXPECT_EQ(text(), before);
  const Error error = error_of([&] {
    export_model(
        *bare_,
        [&](const Tensors& in) { return Tensors{in[0] * bare_->weight}; },
        {example()},
        file("missing/net.pt2"));
  });
  EXPECT_EQ(error.code(), ErrorCode::kFileIo);
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder_.path()))
    names.push_back(entry.path().filename().string());
  EXPECT_THAT(names, ElementsAre("net.pt2"));
}

TEST_F(ExportModel, LeavesNothingOfAFileThatIsCutOff) {
  struct ::rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto action = std::signal(SIGXFSZ, SIG_IGN);
  const struct ::rlimit small { .rlim_cur = 1024, .rlim_max = before.rlim_max };
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Error error = refusal([](const at::Tensor& x, const at::Tensor& w) { return x * w; });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, action);

  EXPECT_EQ(error.code(), ErrorCode::kFileIo);
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

const ExportOptions kAnyBatch = {.batch_axes = {{"x", 0}}};

TEST_F(ExportModel, TakesBatchesOfAnySizeWhereThatIsAskedFor) {
  const auto function = [](const at::Tensor& x, const at::Tensor& w) {
    const std::int64_t rows = x.size(0);
    const at::Tensor places = at::arange(2 * rows + 1).to(at::kFloat).slice(0, 1).view({rows, 2});
    return (x * w).reshape({rows * 3}).slice(0, 0, rows * 2).view({2, -1}).t() + places;
  };
  write(function, kAnyBatch);

  ExportedModel loaded(file());
  EXPECT_THAT(loaded->input_sizes("x"), ElementsAre(-1, 3));
  for (const std::int64_t rows : {1, 2, 7}) {
    const at::Tensor x = at::randn({rows, 3});
    const at::Tensor found = loaded(x);
    EXPECT_THAT(found, SameTensor(function(x, bare_->weight))) << rows << " rows";
  }
  EXPECT_THAT(error_of([&] { (void)loaded(at::randn({2, 4})); }).message(), HasSubstr("x"));
}

TEST_F(ExportModel, LeavesOutTheBatchOfOneWhereTheModuleTakesNone) {
  write(
      [](const at::Tensor& x, const at::Tensor& w) {
        TORCH_CHECK(x.size(0) > 1, "more rows");
        return x * w;
      },
      kAnyBatch);

  ExportedModel loaded(file());
  EXPECT_NO_THROW((void)loaded(at::randn({9, 3})));
  const exported::Archive archive{fs::path(file())};
  EXPECT_EQ(exported::read_graph(archive.graph_text("model")).ranges.at("s0").min, 2);
}

TEST_F(ExportModel, RefusesWhatTheSizeOfTheBatchDecides) {
  EXPECT_THAT(refusal([](const at::Tensor& x,
                         const at::Tensor& w) { return x.size(0) > 2 ? x + w : x * w; },
                      kAnyBatch)
                  .message(),
              HasSubstr("after 0 others is not the same for batches of 2 and 3"));
  EXPECT_THAT(refusal([](const at::Tensor& x,
                         const at::Tensor& w) { return x * w / static_cast<double>(x.size(0)); },
                      kAnyBatch)
                  .message(),
              HasSubstr("of the node div"));
  EXPECT_THAT(
      refusal([](const at::Tensor& x,
                 const at::Tensor& w) { return (x * w).sum() + at::ones({x.size(0) * x.size(0)}); },
              kAnyBatch)
          .message(),
      HasSubstr("of the node ones"));
  EXPECT_THAT(refusal([](const at::Tensor& x, const at::Tensor& w) { return x * w; },
                      {.batch_axes = {{"y", 0}}})
                  .message(),
              HasSubstr("names the input y"));
  EXPECT_THAT(refusal([](const at::Tensor& x, const at::Tensor& w) { return x * w; },
                      {.batch_axes = {{"x", 2}}})
                  .message(),
              HasSubstr("no axis 2"));
}

TEST_F(ExportModel, HasOneGraphWhereOneIsAskedFor) {
  Net net;
  export_model(net, std::make_tuple(example()), file(), {.graphs = ExportGraphs::kEvaluation});
  ExportedModel loaded(file());
  EXPECT_FALSE(loaded->is_training());
  net->eval();
  const at::Tensor found = loaded(example());
  EXPECT_THAT(found.detach(), SameTensor(net(example()).detach()));
}

}  // namespace
}  // namespace accel::export_model_test
