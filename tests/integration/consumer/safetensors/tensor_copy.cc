// Lists the tensors of a file and writes them into another, as any program may that links accel::safetensors alone.
#include <cstddef>
#include <cstdio>
#include <vector>

#include <accel/safetensors_reader.h>
#include <accel/safetensors_writer.h>

namespace st = accel::safetensors;

namespace {

accel::Result<void> copy(const char* from, const char* to) {
  const auto reader = st::Reader::open(from);
  if (!reader) return reader.error();
  const auto mapping = reader->map();
  if (!mapping) return mapping.error();

  std::vector<st::TensorSpec> specs;
  for (const st::TensorInfo& tensor : reader->header().tensors)
    specs.push_back({tensor.name, tensor.dtype, tensor.shape});
  auto writer = st::Writer::create(to, specs, reader->header().metadata);
  if (!writer) return writer.error();

  for (const st::TensorInfo& tensor : reader->header().tensors) {
    std::printf("%s %s", tensor.name.c_str(), st::dtype_name(tensor.dtype).data());
    for (const auto size : tensor.shape)
      std::printf(" %llu", static_cast<unsigned long long>(size));
    std::printf("\n");
    // One half through memory of our own, the other from where the file lies.
    std::vector<std::byte> half(tensor.num_bytes() / 2);
    if (auto read = reader->read_range(tensor.name, 0, half); !read) return read;
    if (auto written = writer->write(tensor.name, half); !written) return written;
    const auto rest = mapping->bytes(tensor).subspan(half.size());
    if (auto written = writer->write(tensor.name, rest, half.size()); !written) return written;
  }
  return writer->publish();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: tensor_copy FROM TO\n");
    return 2;
  }
  const auto copied = copy(argv[1], argv[2]);
  if (copied) return 0;
  std::fprintf(stderr, "%s\n", copied.error().render("tensor_copy").c_str());
  return accel::error_info(copied.error().code()).exit_status;
}
