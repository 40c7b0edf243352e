"""Writes a model of Python as a file that libaccel trains without Python. `accel export` runs this script.

    python export_model.py '{"model": "hf:gpt2", "output": "model.pt2"}'

The file is an archive of torch.export (`.pt2`) with two graphs of ATen operators: `model` as the module computes in train(), and
`eval` as it computes in eval(). Both use the weights of the archive, which stand there once. `extra/accel.json` says what it is.

With `compile` it also has graphs as machine code of AOTInductor, under `data/aotinductor/`, for the CPU that it is written on: `eval`, and
`model` with its gradients.

Operators are not decomposed, so that autograd differentiates what it differentiates in Python. What Python decides while it
traces is decided for good: shapes that are not dynamic, the rate of dropout, the implementation of attention.

The answer is one line of JSON on stdout: {"done": facts} or {"error": {"id", "message", "remedy"}}; ids are those of docs/reference/errors.md.
"""
import contextlib
import dataclasses
import importlib
import inspect
import io
import itertools
import json
import logging
import os
import re
import shutil
import sys
import tempfile
import traceback
import warnings
import zlib

FORMAT = 1
EXAMPLE_SEED = 20
BESIDE = "model.safetensors"
COMPILED_FORMAT = 1
COMPILED_FOLDER = "data/aotinductor/{}/"


class Refusal(Exception):
    """A failure that the user can mend."""

    def __init__(self, code, message, remedy):
        super().__init__(message)
        self.code, self.message, self.remedy = code, message, remedy


@dataclasses.dataclass
class Request:
    model: str
    output: str
    task: str = ""
    loss: str = ""             # inside or logits; empty: inside, where the source knows a loss
    dynamic: tuple = ()        # of batch and sequence
    weights: str = "inside"    # or beside
    random_weights: bool = False
    seed: int = 0
    batch_size: int = 2
    sequence_length: int = 64
    max_cache_len: int = 0     # of a static cache with batch_size rows; 0: none
    attention_mask: bool = False
    dropout: bool = True
    compile: tuple = ()        # of eval and train
    trust_remote_code: bool = False


@dataclasses.dataclass
class Subject:
    """A module, how it is called, and which axes of its inputs are the batch and the sequence.

    Of several outputs the training graph gives the loss alone: what nobody uses need not be kept."""

    net: "torch.nn.Module"
    inputs: dict               # name -> tensor, in the order of the call
    results: "callable"        # (net's own forward, inputs by name) -> outputs by name, or what forward() gives
    axes: dict                 # name of an input -> {axis: "batch" or "sequence"}
    task: str = ""
    config: object = None      # has save_pretrained()

    def in_mode(self, mode):
        self.net.train(mode == "train")
        return self


def package(name, pip_name=None):
    try:
        return importlib.import_module(name)
    except ImportError as missing:
        if (missing.name or "").split(".")[0] not in (name.split(".")[0], ""):
            raise Refusal("unsupported", f"the Python package {name} needs {missing.name}, which {sys.executable} does not have",
                          f"{sys.executable} -m pip install {missing.name}") from None
        raise Refusal("unsupported", f"the Python package {name} is not installed for {sys.executable}",
                      f"{sys.executable} -m pip install {pip_name or name}, or name another Python with --python") from None


# ---- where models come from ----

# task -> classes of transformers, the first that knows the configuration is taken; names of what the eval graph returns
TASKS = {
    "image-text": (("AutoModelForZeroShotImageClassification",), ("loss", "logits_per_image", "logits_per_text")),
    "seq2seq": (("AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq"), ("loss", "logits")),
    "image": (("AutoModelForImageClassification",), ("loss", "logits")),
    "masked-lm": (("AutoModelForMaskedLM",), ("loss", "logits")),
    "causal-lm": (("AutoModelForCausalLM",), ("loss", "logits")),
    "classification": (("AutoModelForSequenceClassification",), ("loss", "logits")),
}


def transformers_config(request, name):
    transformers = package("transformers")
    if os.path.isdir(name) and not os.path.exists(os.path.join(name, "config.json")):
        raise Refusal("usage", f"the folder {name} has no config.json", "name a folder that save_pretrained() wrote")
    is_path = name.startswith((".", "/", "~")) or name.endswith(".json")
    if is_path and not os.path.exists(name):
        raise Refusal("usage", f"there is no {name}", "check the path; a name of the Hub is written as hf:OWNER/NAME")
    try:
        return transformers.AutoConfig.from_pretrained(name, trust_remote_code=request.trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise Refusal("usage", f"no configuration of a model at hf:{name}: {first_line(error)}",
                      "check the name and the network, or name a folder with a config.json") from None


def auto_class(config, task):
    """(task, class) for the configuration: the task asked for, the one of config.architectures, or the first that fits."""
    import transformers
    for candidate in [task] if task else TASKS:
        for name in TASKS[candidate][0]:
            auto = getattr(transformers, name)
            if type(config) not in auto._model_mapping.keys():
                continue
            models = auto._model_mapping[type(config)]
            names = [model.__name__ for model in (models if isinstance(models, (list, tuple)) else [models])]
            wanted = None if task else (config.architectures or [None])[0]
            if wanted is None or wanted in names:
                config.architectures = [wanted or names[0]]
                return candidate, auto
    if not task and config.architectures:
        config.architectures = None
        return auto_class(config, task)
    raise Refusal("unsupported", f"transformers has no class for {config.model_type} and the task {task or 'training'}",
                  "give another --task, or export a module of your own as MODULE:FACTORY")


def remove_dropout(net, config):
    import torch
    for holder in [config] + [getattr(config, name) for name in dir(config) if name.endswith("_config")] if config else []:
        for name, value in list(getattr(holder, "__dict__", {}).items()):
            if isinstance(value, float) and ("drop" in name or name.endswith("pdrop")):
                setattr(holder, name, 0.0)
    for module in net.modules() if net is not None else []:
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and ("drop" in name or (name == "p" and "Drop" in type(module).__name__)):
                setattr(module, name, 0.0)
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0


def transformers_model(request, name):
    import torch
    transformers = package("transformers")
    config = transformers_config(request, name)
    config.use_cache = False
    task, auto = auto_class(config, request.task)
    if not request.dropout:
        remove_dropout(None, config)
    torch.manual_seed(request.seed)
    if name.endswith(".json") and not request.random_weights:
        raise Refusal("usage", f"{name} has no weights", "name the folder that has them, or give --random_weights")
    try:
        if request.random_weights:
            net = auto.from_config(config, trust_remote_code=request.trust_remote_code)
        else:
            net = auto.from_pretrained(name, config=config, trust_remote_code=request.trust_remote_code)
    except ImportError as missing:
        raise Refusal("unsupported", f"{config.model_type} needs a package: {first_line(missing)}", "install what it names") from None
    except MemoryError:
        raise
    except Exception as error:  # of files that are missing, damaged or of another model: each library below has its own
        raise Refusal("usage", f"transformers cannot make the model of hf:{name}: {type(error).__name__}: {first_line(error)}",
                      "name a folder with its weights, or give --random_weights to begin with random ones") from None
    return transformers_subject(request, net, task)


def transformers_subject(request, net, task):
    net.config.use_cache = False
    net.config.return_dict = True
    inputs, axes = transformers_inputs(request, net, task)
    fixed = {"use_cache": False} if "use_cache" in inspect.signature(net.forward).parameters else {}
    if task == "image-text":
        fixed["return_loss"] = True
    outputs = TASKS[task][1]
    if request.loss == "logits":
        for of_inputs in (inputs, axes):
            of_inputs.pop("labels", None)
        fixed.pop("return_loss", None)
        outputs = outputs[1:]

    def results(forward, named):
        result = forward(**named, **fixed)
        return {name: result[name] for name in outputs}

    return Subject(net, inputs, results, axes, task, net.config)


def transformers_inputs(request, net, task):
    """Inputs by name, and their axes."""
    import torch
    config, text = net.config, net.config.get_text_config()
    batch, length = request.batch_size, request.sequence_length
    draws = torch.Generator().manual_seed(EXAMPLE_SEED)
    words = {0: "batch", 1: "sequence"}

    def tokens():
        return torch.randint(3, text.vocab_size, (batch, length), generator=draws)

    def pixels(of):
        size = of.image_size if hasattr(of, "image_size") else 32
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        return torch.randn(batch, getattr(of, "num_channels", 3), height, width, generator=draws)

    if task == "image":
        return ({"pixel_values": pixels(config), "labels": torch.randint(0, config.num_labels, (batch,), generator=draws)},
                {"pixel_values": {0: "batch"}, "labels": {0: "batch"}})
    if task == "image-text":
        length = min(length, text.max_position_embeddings)
        return ({"input_ids": tokens(), "pixel_values": pixels(config.vision_config)},
                {"input_ids": words, "pixel_values": {0: "batch"}})
    if task == "seq2seq" and net.main_input_name == "input_features":
        frames = torch.randn(batch, config.num_mel_bins, 2 * config.max_source_positions, generator=draws)
        return {"input_features": frames, "labels": tokens()}, {"input_features": {0: "batch"}, "labels": words}
    inputs = {"input_ids": tokens()}
    if request.attention_mask:
        inputs["attention_mask"] = torch.ones(batch, length, dtype=torch.int64)
    axes = {name: words for name in inputs}
    if task == "classification":
        config.problem_type = config.problem_type or "single_label_classification"
        inputs["labels"] = torch.randint(0, config.num_labels, (batch,), generator=draws)
        return inputs, axes | {"labels": {0: "batch"}}
    inputs["labels"] = inputs["input_ids"].clone() if task == "causal-lm" else tokens()
    return inputs, axes | {"labels": words}


def classified_images(request, net, size):
    """A module from images to logits, with the cross entropy inside unless logits are asked for."""
    import torch
    draws = torch.Generator().manual_seed(EXAMPLE_SEED)
    inputs = {"images": torch.randn(request.batch_size, *size, generator=draws)}
    with torch.no_grad():
        net.eval()
        classes = net(inputs["images"]).shape[-1]
    logits_only = request.loss == "logits"
    if not logits_only:
        inputs["labels"] = torch.randint(0, classes, (request.batch_size,), generator=draws)

    def results(forward, named):
        logits = forward(named["images"])
        logits = getattr(logits, "logits", logits)  # of a network with auxiliary heads the main one
        if logits_only:
            return {"logits": logits}
        return {"loss": torch.nn.functional.cross_entropy(logits, named["labels"]), "logits": logits}

    return Subject(net, inputs, results, {name: {0: "batch"} for name in inputs}, "image")


def timm_model(request, name):
    import torch
    timm = package("timm")
    torch.manual_seed(request.seed)
    try:
        net = timm.create_model(name, pretrained=not request.random_weights)
    except (RuntimeError, OSError, ValueError) as error:
        raise Refusal("usage", f"timm cannot make {name}: {first_line(error)}",
                      "see timm.list_models(), and give --random_weights where there is no network") from None
    return classified_images(request, net, net.default_cfg.get("input_size", (3, 224, 224)))


def torchvision_model(request, name):
    import torch
    torchvision = package("torchvision")
    torch.manual_seed(request.seed)
    try:
        net = torchvision.models.get_model(name, weights=None if request.random_weights else "DEFAULT")
    except ValueError as error:
        raise Refusal("usage", f"torchvision cannot make {name}: {first_line(error)}", "see torchvision.models.list_models()") from None
    except OSError as error:
        raise Refusal("usage", f"the weights of {name} cannot be fetched: {first_line(error)}",
                      "give --random_weights where there is no network") from None
    return classified_images(request, net, (3, 299, 299) if "inception" in name else (3, 224, 224))


def diffusers_model(request, name):
    """A network that predicts the noise of a sample at a time; the loss is the mean square."""
    import torch
    diffusers = package("diffusers")
    folder = os.path.join(name, "unet") if os.path.isdir(os.path.join(name, "unet")) else name
    path = folder if folder.endswith(".json") else os.path.join(folder, "config.json")
    try:
        with open(path, encoding="utf-8") as file:
            settings = json.load(file)
        kind = getattr(diffusers, settings["_class_name"])
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise Refusal("usage", f"no configuration of diffusers at {path}: {first_line(error)}",
                      "name a folder that save_pretrained() of a UNet or a pipeline wrote") from None
    torch.manual_seed(request.seed)
    net = kind.from_config(settings) if request.random_weights else kind.from_pretrained(folder)
    draws = torch.Generator().manual_seed(EXAMPLE_SEED)
    size = net.config.sample_size if isinstance(net.config.sample_size, (list, tuple)) else [net.config.sample_size or 32] * 2
    batch = request.batch_size
    inputs = {"sample": torch.randn(batch, net.config.in_channels, *size, generator=draws),
              "timestep": torch.randint(0, 1000, (batch,), generator=draws)}
    if "encoder_hidden_states" in inspect.signature(net.forward).parameters:
        inputs["encoder_hidden_states"] = torch.randn(batch, 16, net.config.cross_attention_dim, generator=draws)
    logits_only = request.loss == "logits"
    if not logits_only:
        inputs["labels"] = torch.randn(batch, net.config.out_channels, *size, generator=draws)

    def results(forward, named):
        named = dict(named)
        target = named.pop("labels", None)
        predicted = forward(**named).sample
        if logits_only:
            return {"sample": predicted}
        return {"loss": torch.nn.functional.mse_loss(predicted, target), "sample": predicted}

    return Subject(net, inputs, results, {name: {0: "batch"} for name in inputs}, "noise", net)


def factory_module(name):
    """The Python module of MODULE:FACTORY."""
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name != name:
            raise Refusal("unsupported", f"{name} imports {missing.name}, which {sys.executable} does not have",
                          f"{sys.executable} -m pip install {missing.name}") from None
        raise Refusal("usage", f"there is no Python module {name} in {os.getcwd()} or installed",
                      "write hf:, timm:, torchvision: or diffusers: and a name, or a module that can be imported from here") from None


def example_inputs(net, module):
    """Of the network, or of its Python module: tensors by the names of forward()."""
    import torch
    examples = getattr(net, "example_inputs", None) or getattr(module, "example_inputs", None)
    if not callable(examples):
        raise Refusal("usage", f"neither {type(net).__name__} nor {module.__name__} has example_inputs()",
                      "add a function example_inputs() that returns a dict of tensors by the names of forward()")
    given = examples()
    if not isinstance(given, dict):
        names = list(inspect.signature(net.forward).parameters)
        given = dict(zip(names, given if isinstance(given, (tuple, list)) else (given,)))
    faulty = [name for name, value in given.items() if not isinstance(value, torch.Tensor)]
    if faulty:
        raise Refusal("usage", f"example_inputs() gives {', '.join(faulty)}, which is no tensor",
                      "give tensors alone; set other values in the factory")
    return given


def factory_model(request, spec):
    import torch
    module_name, _, factory_name = spec.partition(":")
    if request.loss or request.task:
        raise Refusal("usage", "--loss and --task are for models of known libraries", f"let forward() of {spec} return what is trained")
    module = factory_module(module_name)
    factory = getattr(module, factory_name, None)
    if not callable(factory):
        raise Refusal("usage", f"the Python module {module_name} has no function {factory_name}",
                      "name a function or class that makes the model")
    torch.manual_seed(request.seed)
    net = factory()
    if not isinstance(net, torch.nn.Module):
        raise Refusal("usage", f"{spec} returns {type(net).__name__}, which is no torch.nn.Module", "return the module")
    given = example_inputs(net, module)
    return Subject(net, given, lambda forward, named: forward(**named), {name: {0: "batch", 1: "sequence"} for name in given})


SOURCES = {"hf": transformers_model, "timm": timm_model, "torchvision": torchvision_model, "diffusers": diffusers_model}


def find_subject(request):
    source, colon, rest = request.model.partition(":")
    if not colon or not rest:
        raise Refusal("usage", f"'{request.model}' says no source",
                      "write hf:, timm:, torchvision: or diffusers: and a name, or MODULE:FACTORY")
    if source in SOURCES:
        subject = SOURCES[source](request, rest)
    else:
        subject = factory_model(request, request.model)
    if not request.dropout:
        remove_dropout(subject.net, getattr(subject.net, "config", None) if source == "hf" else None)
    return subject


# ---- from a module to graphs ----

@contextlib.contextmanager
def plain_forward(subject):
    """Within it the module takes its tensors by position, and returns the outputs of its mode.

    The module is not wrapped: its parameters keep their names."""
    own = subject.net.forward

    def forward(*tensors):
        outputs = subject.results(own, dict(zip(subject.inputs, tensors)))
        if subject.net.training and isinstance(outputs, dict) and "loss" in outputs:
            return {"loss": outputs["loss"]}
        return outputs

    forward.__signature__ = inspect.Signature(
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in subject.inputs])
    subject.net.forward = forward
    try:
        yield subject.net
    finally:
        del subject.net.forward


def with_native_operators(program):
    """Experts of transformers use the operator of LibTorch, as they do outside of a trace, and not one that Python registers."""
    import torch
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else []:
            if str(node.target) == "transformers.grouped_mm_fallback.default":
                node.target = torch.ops.aten._grouped_mm.default
    return program


@contextlib.contextmanager
def transformers_patches():
    """What transformers itself replaces while it exports."""
    patches = contextlib.nullcontext()
    if "transformers" in sys.modules:
        with contextlib.suppress(ImportError):  # versions before 5.20 have none
            importlib.import_module("transformers.exporters.exporter_dynamo")
            patches = importlib.import_module("transformers.exporters.utils").apply_patches("dynamo")
    with patches:
        yield


def dynamic_shapes(request, subject, make):
    """For torch.export; None when all is fixed."""
    shapes = tuple({axis: make(name) for axis, name in subject.axes.get(input_name, {}).items()
                    if name in request.dynamic and axis < tensor.dim()} for input_name, tensor in subject.inputs.items())
    return shapes if any(shapes) else None


def fixed_axes(request, subject, program):
    """Of the dynamic axes asked for those that the trace has fixed, as "input_ids[1]"."""
    import torch
    fixed = []
    users = [node for node in program.graph.nodes if node.op == "placeholder"][-len(subject.inputs):]
    for node, name in zip(users, subject.inputs):
        for axis, meaning in subject.axes.get(name, {}).items():
            if meaning in request.dynamic and axis < node.meta["val"].dim():
                size = node.meta["val"].shape[axis]
                if not isinstance(size, torch.SymInt) or size.node.maybe_as_int() is not None:
                    fixed.append(f"{name}[{axis}] ({meaning})")
    return fixed


@contextlib.contextmanager
def quiet_streams():
    """PyTorch prints the graph so far when it fails."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def traced(request, subject):
    """The graph of the module in the mode that it is in."""
    import torch
    dims = {name: torch.export.Dim(name, min=1, max=1 << 20) for name in request.dynamic}
    attempts = [(contextlib.nullcontext, dims.get), (contextlib.nullcontext, lambda _: torch.export.Dim.AUTO),
                (transformers_patches, lambda _: torch.export.Dim.AUTO)]
    if not request.dynamic:
        attempts = attempts[1:]
    failure = None
    for patches, make in attempts:
        try:
            with plain_forward(subject) as net, patches(), quiet_streams():
                program = torch.export.export(net, tuple(subject.inputs.values()), strict=False,
                                              dynamic_shapes=dynamic_shapes(request, subject, make))
        except Exception as error:  # torch.export lets through whatever the model's code raises
            if failure is None or patches is contextlib.nullcontext:
                failure = error
            continue
        fixed = fixed_axes(request, subject, program)
        if not fixed:
            return with_native_operators(program)
        failure = Refusal("unsupported", f"the model fixes {', '.join(fixed)} to the size of the example",
                          "leave that out of --dynamic, and give the size with --batch_size or --sequence_length")
    raise failure if isinstance(failure, Refusal) else not_exportable(subject, failure)


def learned_positions(net):
    """How many places the smallest table of learned positions has; None without one."""
    import torch
    tables = [module for name, module in net.named_modules() if isinstance(module, torch.nn.Embedding)
              and re.fullmatch("wpe|(?!.*relative).*position.*", name.rpartition(".")[2])]
    # OPT begins at row 2, RoBERTa behind the row of padding.
    return min((table.num_embeddings - getattr(table, "offset", 0) - (0 if table.padding_idx is None else table.padding_idx + 1)
                for table in tables), default=None)


def add_static_cache(request, subject):
    """Keys and values lie in buffers of the module. From here on it takes tokens and their places, and gives logits."""
    import torch
    if subject.task != "causal-lm":
        raise Refusal("usage", f"only models that predict the next token have a cache, and this one is for {subject.task or 'its own task'}",
                      "leave out --max_cache_len, or give --task causal-lm")
    if request.compile:
        raise Refusal("usage", "a graph with a cache is not compiled", "leave out --compile, or --max_cache_len")
    net = subject.net.eval()
    places = learned_positions(net)
    if places is not None and request.max_cache_len > places:
        raise Refusal("usage", f"--max_cache_len is {request.max_cache_len}, and the model has learned {places} positions",
                      f"give --max_cache_len {places} at most")
    net.config.use_cache = net.generation_config.use_cache = True
    net.generation_config.cache_implementation = "static"
    exporting = package("transformers.integrations.executorch", "transformers")
    try:
        holder = exporting.TorchExportableModuleForDecoderOnlyLM(net, batch_size=request.batch_size, max_cache_len=request.max_cache_len).model
    except Exception as error:  # of the model's own code
        raise Refusal("unsupported", f"the model has no static cache: {first_line(error)}", "leave out --max_cache_len") from None
    cache = holder.static_cache if hasattr(holder, "static_cache") else holder.cache
    for name, buffer in list(holder.named_buffers(recurse=False)):
        net.register_buffer(name, buffer, persistent=False)
    own = net.forward
    argument = "past_key_values" if "past_key_values" in inspect.signature(own).parameters else "cache"

    def forward(input_ids, cache_position):
        for layer in cache.layers:
            layer.cumulative_length.copy_(cache_position[0])
        return {"logits": own(input_ids=input_ids, attention_mask=None, use_cache=True, **{argument: cache}).logits}

    net.forward = forward
    subject.axes = {"input_ids": {1: "sequence"}, "cache_position": {0: "sequence"}}
    subject.inputs = {"input_ids": torch.ones(request.batch_size, 3, dtype=torch.long), "cache_position": torch.arange(3)}
    return own


def traced_with_cache(request, subject):
    """Its graph, for any number of tokens, or where the model fixes that for one at a time."""
    import torch
    sequence = torch.export.Dim("sequence", min=1, max=request.max_cache_len)
    one = {"input_ids": subject.inputs["input_ids"][:, :1], "cache_position": subject.inputs["cache_position"][:1]}
    failure = None
    for inputs, shapes in ((subject.inputs, ({1: sequence}, {0: sequence})), (one, None)):
        try:
            with torch.no_grad(), quiet_streams():  # strict: what the module reaches by its cache are its buffers
                return torch.export.export(subject.net, tuple(inputs.values()), dynamic_shapes=shapes, strict=True)
        except Exception as error:  # torch.export lets through whatever the model's code raises
            failure = failure or error
            subject.inputs = one
    raise not_exportable(subject, failure)


def not_exportable(subject, error):
    """Says which line of whose code the trace could not pass."""
    torch_folder = os.path.dirname(sys.modules["torch"].__file__)
    place = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if not frame.filename.startswith((torch_folder, "<")) and frame.filename != globals().get("__file__"):
            place = f" at {frame.filename}:{frame.lineno}, `{frame.line}`"
    kind = type(error).__name__
    remedy = "see the line, and docs/guides/exported-models.md for what can be exported"
    if "DataDependent" in kind or "data-dependent" in str(error) or "Tensor.item" in str(error):
        remedy = "that line lets the values of a tensor decide what is computed; use torch.where there"
    elif "onstraint" in str(error) or "dynamic" in str(error).lower():
        remedy = "leave out --dynamic, or one of its words"
    elif isinstance(error, ImportError):
        remedy = "install what it names"
    return Refusal("unsupported", f"torch.export cannot trace {type(subject.net).__name__}{place}: {kind}: {first_line(error)}", remedy)


def first_line(error):
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]


# ---- from a graph to machine code ----

# What is compiled takes parameters, buffers and constants as its first inputs, in the order of the graph. So it holds no value of
# them: AOTInductor bakes constants of up to 8 elements, and those that are uniform, into the code, where they would stay as they
# were when an optimizer has long changed them.

def compiled_inputs(program, inputs):
    """What stands for each input of the graph while it is compiled: tensors that are contiguous, as they are when it runs."""
    from torch.export.graph_signature import InputKind
    users, values = iter(inputs.values()), []
    for spec in program.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT:
            values.append(next(users))
        else:
            values.append(program.state_dict[spec.target] if spec.target in program.state_dict else program.constants[spec.target])
    return [value.detach().contiguous() for value in values]


def named_inputs(program):
    from torch.export.graph_signature import InputKind
    kinds = {InputKind.PARAMETER: "parameter", InputKind.BUFFER: "buffer", InputKind.CONSTANT_TENSOR: "constant",
             InputKind.USER_INPUT: "user"}
    places = itertools.count()
    return [[kinds[spec.kind], spec.target or str(next(places))] for spec in program.graph_signature.input_specs]


def named_outputs(program):
    from torch.export.graph_signature import OutputKind
    kinds = {OutputKind.GRADIENT_TO_PARAMETER: "gradient", OutputKind.BUFFER_MUTATION: "buffer"}
    return [[kinds.get(spec.kind, "output"), spec.target if spec.kind in kinds else str(index)]
            for index, spec in enumerate(program.graph_signature.output_specs)]


def without_unused_parameters(program):
    """Of two names of a tied weight the graph uses one; the other has no gradient, at which the export of a backward stops."""
    import copy
    from torch.export.graph_signature import InputKind
    graph, signature = copy.deepcopy(program.graph_module), copy.deepcopy(program.graph_signature)
    kept = []
    for node, spec in zip([node for node in graph.graph.nodes if node.op == "placeholder"], signature.input_specs):
        if spec.kind == InputKind.PARAMETER and not node.users:
            graph.graph.erase_node(node)
        else:
            kept.append(spec)
    graph.recompile()
    gone = {spec.target for spec in signature.input_specs} - {spec.target for spec in kept}
    signature.input_specs[:] = kept
    return program._update(graph, signature, state_dict={name: value for name, value in program.state_dict.items() if name not in gone})


def draws_numbers(node):
    """Attention may draw, and does not where its rate of dropout is 0."""
    import torch
    if not isinstance(node.target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    arguments = node.target._schema.arguments
    given = {argument.name: argument.default_value for argument in arguments}
    given |= dict(zip([argument.name for argument in arguments], node.args)) | node.kwargs
    return not any(given.get(name) == 0 for name in ("dropout_p", "p"))


def joint_program(subject, program):
    """The loss and the gradients of all parameters as one graph.

    PyTorch's table replaces the attention of the forward by one that gives its weights where the backward of the other takes
    the logarithms of sums: all gradients behind it would be wrong. So both stay what they are."""
    import torch
    from torch._decomp import core_aten_decompositions
    from torch.export.exported_program import _decompose_exported_program
    name = type(subject.net).__name__
    table = core_aten_decompositions()
    table.pop(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default, None)
    if len(program.graph_signature.output_specs) != 1:
        raise Refusal("unsupported", f"the graph of train() returns {len(program.graph_signature.output_specs)} values, and only a loss is compiled",
                      "let the model return its loss as \"loss\", or compile eval alone")
    try:
        with quiet_streams():
            joint = _decompose_exported_program(without_unused_parameters(program), cia_to_decomp={}, python_decomp_table=table,
                                                joint_loss_index=0, decompose_custom_triton_ops=False)
    except MemoryError:
        raise
    except Exception as error:  # of the trace, which lets through what operators raise
        raise Refusal("unsupported", f"the backward of {name} cannot be traced: {type(error).__name__}: {first_line(error)}",
                      "compile eval alone") from None
    draws = {str(node.target) for node in joint.graph.nodes if draws_numbers(node)}
    if draws:
        raise Refusal("unsupported", f"the training of {name} draws random numbers ({', '.join(sorted(draws))}), and code would draw others",
                      "give --no_dropout, or compile eval alone")
    return joint


def check_compiler():
    from torch._inductor import config, cpp_builder, exc
    try:
        return cpp_builder.get_cpp_compiler()
    except exc.InvalidCxxCompiler:
        named = os.environ.get("CXX") or ", ".join(name for name in config.cpp.cxx if name) or "g++"
        raise Refusal("unsupported", f"--compile needs a C++ compiler, and none of {named} can be run",
                      "install one (apt install g++), or name it in CXX") from None


def compiled_files(subject, program, folder):
    """The shared library of the graph, and the files that belong to it: PyTorch's own loader asks for the sources, too."""
    import copy
    import torch
    if any(parameter.device.type != "cpu" for parameter in subject.net.parameters()):
        raise Refusal("unsupported", "--compile makes code for CPUs alone, and the model is on a GPU", "leave --compile out")
    check_compiler()
    options = {"aot_inductor.package": True,
               # As many threads as LibTorch has where it runs, not where it is compiled.
               "cpp.dynamic_threads": True,
               # Export writes 2 as the least of a size that may be 1.
               "aot_inductor.check_lowerbound": False}
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(folder, "compiled"))
    try:
        with quiet_streams():
            return torch._inductor.aot_compile(copy.deepcopy(program.graph_module),
                                               tuple(compiled_inputs(program, subject.inputs)), options=options)
    except MemoryError:
        raise
    except Exception as error:  # of the compiler and its passes: none has a type that says what the user can mend
        raise Refusal("unsupported", f"AOTInductor cannot compile {type(subject.net).__name__}: {type(error).__name__}: {first_line(error)}",
                      "leave --compile out: the graph is run operator by operator then") from None


def compiled_programs(request, subject, programs, folder):
    """{graph: (the program that was compiled, files)}."""
    sources = {"eval": lambda: programs["eval"], "model": lambda: joint_program(subject, programs["model"])}
    made = {}
    for graph, word in (("eval", "eval"), ("model", "train")):
        if word in request.compile:
            program = sources[graph]()
            made[graph] = (program, compiled_files(subject, program, folder))
    return made


def cpu_features():
    """Of this CPU, those that a compiler makes use of: it compiles for all that it finds (-march=native)."""
    kept = re.compile(r"sse\w*|ssse3|pni|avx\w*|amx\w*|fma4?|bmi\d|f16c|movbe|abm|popcnt|v?aes|v?pclmulqdq|sha_ni|gfni|adx")
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, words = line.partition(":")
            if name.strip() == "flags":
                return sorted(word for word in words.split() if kept.fullmatch(word))
            if name.strip() == "Features":  # of ARM
                return sorted(words.split())
    return []


def compiled_table(program, graph_text):
    """What the code was made of and for: libaccel/exported/compiled_package.h."""
    import torch
    return json.dumps({"format": COMPILED_FORMAT, "torch": torch.__version__.split("+")[0], "cpu": cpu_features(),
                       "inputs": named_inputs(program), "outputs": named_outputs(program),
                       "graph": {"bytes": len(graph_text), "crc32": zlib.crc32(graph_text)}})


# ---- from graphs to the file ----

def write_archive(path, programs, facts, with_weights=True, compiled=None):
    """The weights stand in the archive once, and each graph's table of weights names the same records."""
    from torch.export.pt2_archive import _package as pt2
    extra = {"accel.json": json.dumps(facts, indent=1)}
    try:
        constants, weights_of, serialize = pt2._package_constants, pt2._package_state_dict, pt2.serialize
    except AttributeError:  # another version of PyTorch: one copy for each graph
        if compiled:
            raise Refusal("unsupported", f"--compile does not know the archives of torch {sys.modules['torch'].__version__}",
                          "use torch 2.11") from None
        pt2.package_pt2(path, exported_programs=programs, extra_files=extra)
        return
    with pt2.PT2ArchiveWriter(path) as archive:
        table = weights_of("model", programs["model"], archive if with_weights else WithoutBytes(archive))
        for name, program in programs.items():
            own = dataclasses.replace(table, config={key: table.config[key] for key in program.state_dict})
            pt2._package_payload_config(archive, own, pt2.WEIGHTS_CONFIG_FILENAME_FORMAT.format(name))
            pt2._package_payload_config(archive, constants(name, program, archive), pt2.CONSTANTS_CONFIG_FILENAME_FORMAT.format(name))
            artifact = serialize(program)
            archive.write_bytes(pt2.MODELS_FILENAME_FORMAT.format(name), artifact.exported_program)
            archive.write_bytes(pt2.SAMPLE_INPUTS_FILENAME_FORMAT.format(name), artifact.example_inputs)
            if name in (compiled or {}):
                joint, files = compiled[name]
                folder = COMPILED_FOLDER.format(name)
                for file in files:
                    archive.write_file(folder + os.path.basename(file), file)
                archive.write_string(folder + "accel.json", compiled_table(joint, artifact.exported_program))
        pt2._package_extra_files(archive, extra)


class WithoutBytes:
    """An archive whose weights are empty, as PyTorch writes those that have no values."""

    def __init__(self, archive):
        self.archive, self.count_prefix = archive, archive.count_prefix

    def write_bytes(self, name, data):
        self.archive.write_bytes(name, b"")


def write_weights_beside(folder, subject):
    """With the names of state_dict(), each storage once, as from_pretrained() reads them."""
    save = package("safetensors.torch", "safetensors")
    kept, seen = {}, {}
    for name, tensor in subject.net.state_dict().items():
        place = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape)
        if seen.setdefault(place, name) == name:
            kept[name] = tensor.contiguous()
    path = os.path.join(folder, BESIDE)
    save.save_file(kept, path, metadata={"format": "pt"})
    umask = os.umask(0)
    os.umask(umask)
    os.chmod(path, 0o666 & ~umask)  # safetensors makes it readable for its owner alone
    if hasattr(subject.config, "save_pretrained"):
        subject.config.save_pretrained(folder) if subject.config is not subject.net else subject.net.save_config(folder)


def facts_of(request, subject, programs):
    import torch
    net, transformers = subject.net, sys.modules.get("transformers")
    blocks = {type(child).__name__ for module in net.modules() if isinstance(module, torch.nn.ModuleList) for child in module}
    outputs = programs["eval"].call_spec.out_spec.unflatten(range(programs["eval"].call_spec.out_spec.num_leaves))
    return {
        "format": FORMAT, "source": request.model, "task": subject.task, "class": type(net).__name__,
        "blocks": sorted(blocks), "loss": isinstance(outputs, dict) and "loss" in outputs,
        "inputs": [{"name": name, "dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape),
                    "dynamic": {str(axis): word for axis, word in subject.axes.get(name, {}).items() if word in request.dynamic}}
                   for name, tensor in subject.inputs.items()],
        "outputs": list(outputs) if isinstance(outputs, dict) else [],
        "parameters": sum(parameter.numel() for parameter in net.parameters()),
        "weights": "inside" if request.weights == "inside" else BESIDE,
        "compiled": list(request.compile), **({"max_cache_len": request.max_cache_len} if request.max_cache_len else {}),
        "torch": torch.__version__, "transformers": getattr(transformers, "__version__", ""),
    }


# ---- whether the file computes what the module computes ----

def gradients(net, results, seed):
    """What the module returns in train(), and the gradients of its first output by name. Parameters that share memory, which a
    re-loaded file may hold as two, have their sum under all of their names."""
    import torch
    torch.manual_seed(seed)
    net.zero_grad(set_to_none=True)
    result = results()
    first = torch.utils._pytree.tree_leaves(result)[0]
    if first.requires_grad:
        first.float().sum().backward()
    sums, places = {}, {}
    for parameter in net.parameters():
        if parameter.grad is not None:
            place = parameter.data_ptr()
            sums[place] = sums[place] + parameter.grad if place in sums else parameter.grad
    for name, parameter in net.named_parameters(remove_duplicate=False):
        places[name] = sums.get(parameter.data_ptr())
    net.zero_grad(set_to_none=True)
    return first.detach(), {name: gradient for name, gradient in places.items() if gradient is not None}


def largest_difference(left, right):
    """Of tensors in structures of the same form."""
    import torch
    leaves = torch.utils._pytree.tree_leaves
    return max(((a.double() - b.double()).abs().max().item() for a, b in zip(leaves(left), leaves(right)) if a.numel()), default=0.0)


def compiled_difference(net, program, subject, path, tensors):
    """Between what the module and the machine code of the file return for these inputs."""
    import torch
    from torch._C._aoti import AOTIModelPackageLoader
    code = AOTIModelPackageLoader(path, "eval", False, 1, -1)
    found = code.run(compiled_inputs(program, dict(zip(subject.inputs, tensors))))
    return largest_difference([value for value in torch.utils._pytree.tree_leaves(net(*tensors)) if isinstance(value, torch.Tensor)],
                              [value for value in found if value is not None])


def another_size(request, subject):
    """The example with one more of each dynamic axis."""
    import torch
    larger = dict(subject.inputs)
    for name, axes in subject.axes.items():
        for axis, meaning in axes.items():
            if meaning in request.dynamic and axis < larger[name].dim():
                larger[name] = torch.cat([larger[name], larger[name].narrow(axis, 0, 1)], axis)
    return tuple(larger.values())


def differences(request, subject, path):
    """Between the module and the re-loaded file: of the results in eval(), also for another size of what is dynamic, and of the
    loss and the gradients in train()."""
    import torch
    loaded = torch.export.pt2_archive._package.load_pt2(path).exported_programs
    buffers = {name: value.clone() for name, value in subject.net.named_buffers()}
    tensors = tuple(subject.inputs.values())
    with plain_forward(subject.in_mode("eval")) as net, torch.no_grad():
        again = loaded["eval"].module()
        in_eval = largest_difference(net(*tensors), again(*tensors))
        if request.dynamic:
            larger = another_size(request, subject)
            in_eval = max(in_eval, largest_difference(net(*larger), again(*larger)))
        compiled = {}
        if "eval" in request.compile:
            sizes = [tensors, another_size(request, subject)] if request.dynamic else [tensors]
            compiled["compiled"] = max(compiled_difference(net, loaded["eval"], subject, path, given) for given in sizes)
    again = loaded["model"].module()
    with plain_forward(subject.in_mode("train")) as net:
        expected, expected_gradients = gradients(net, lambda: net(*tensors), EXAMPLE_SEED)
    found, found_gradients = gradients(again, lambda: again(*tensors), EXAMPLE_SEED)
    with torch.no_grad():
        for name, value in subject.net.named_buffers():
            value.copy_(buffers[name])
    missing = set(expected_gradients) - set(found_gradients)
    if missing:
        raise Refusal("internal", f"the exported graph gives no gradient of {sorted(missing)[0]}",
                      "report it with the model's configuration")
    return {"eval": in_eval, **compiled, "train": largest_difference(expected, found),
            "gradients": max((largest_difference(value, found_gradients[name]) for name, value in expected_gradients.items()), default=0.0)}


def cache_difference(request, subject, own, path):
    """Between the module on the whole of some tokens and the re-loaded file on parts of them."""
    import torch
    loaded = torch.export.pt2_archive._package.load_pt2(path).exported_programs["model"].module()
    length, at_once = min(6, request.max_cache_len), subject.inputs["input_ids"].shape[1]
    draws = torch.Generator().manual_seed(EXAMPLE_SEED)
    ids = torch.randint(3, subject.config.get_text_config().vocab_size, (request.batch_size, length), generator=draws)
    with torch.no_grad():
        expected = own(input_ids=ids, use_cache=False).logits
        found = [loaded(ids[:, begin:begin + at_once], torch.arange(begin, min(begin + at_once, length)))["logits"]
                 for begin in range(0, length, at_once)]
    return largest_difference(expected, torch.cat(found, 1))


def write_with_cache(request, subject, draft, folder):
    """Writes the file, and returns its facts. One graph: it is for generating alone."""
    own = add_static_cache(request, subject)
    program = traced_with_cache(request, subject)
    is_dynamic = subject.inputs["input_ids"].shape[1] > 1
    facts = facts_of(dataclasses.replace(request, dynamic=("sequence",) if is_dynamic else ()), subject, {"eval": program})
    write_archive(draft, {"model": program}, facts)
    facts["differences"] = {"eval": cache_difference(request, subject, own, draft)}
    if request.weights == "beside":
        write_weights_beside(folder, subject)
        write_archive(draft, {"model": program}, facts, with_weights=False)
    return facts


def write_for_training(request, subject, draft, folder):
    """Writes the file with the graphs of both modes, and returns its facts."""
    programs = {"model": traced(request, subject.in_mode("train")), "eval": traced(request, subject.in_mode("eval"))}
    compiled = compiled_programs(request, subject, programs, os.path.dirname(draft))
    facts = facts_of(request, subject, programs)
    write_archive(draft, programs, facts, compiled=compiled)
    facts["differences"] = differences(request, subject, draft)
    if request.weights == "beside":
        write_weights_beside(folder, subject)
        write_archive(draft, programs, facts, with_weights=False, compiled=compiled)
    return facts


def export(request):
    """Writes the file, and returns its facts."""
    folder = os.path.dirname(os.path.abspath(request.output))
    try:
        drafts = tempfile.mkdtemp(prefix=".accel-export-", dir=folder)
    except OSError as error:
        raise Refusal("file.io", f"{request.output} cannot be written: {first_line(error)}", "name another file with --output") from None
    draft = os.path.join(drafts, os.path.basename(request.output))
    try:
        write = write_with_cache if request.max_cache_len else write_for_training
        facts = write(request, find_subject(request), draft, folder)
        os.replace(draft, request.output)
    except OSError as error:
        raise Refusal("file.io", f"{request.output} cannot be written: {first_line(error)}",
                      "free space, or name another file with --output") from None
    finally:
        shutil.rmtree(drafts, ignore_errors=True)
    return facts


def main(words):
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    try:
        package("torch")
        answer = {"done": export(Request(**json.loads(words[0])))}
    except Refusal as refusal:
        answer = {"error": {"id": refusal.code, "message": refusal.message, "remedy": refusal.remedy}}
    except MemoryError:
        answer = {"error": {"id": "memory.exhausted", "message": "memory ran out while the model was exported", "remedy": ""}}
    print(json.dumps(answer), file=answers, flush=True)
    return 0 if "done" in answer else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
