"""Variables of builds, tests and debugging."""

from __future__ import annotations

from functools import partial

from slipway.envs.variable import (
    Variable,
    allow,
    implemented,
    no_effect,
    opt_in,
    refused,
    reject,
)

NOTHING_PRECOMPILED = no_effect("Slipway's build compiles its kernels itself, or installs without them")
NOT_IN_A_CONTAINER = reject("read by builds; without effect in a running container")
TEST_HOOK = reject("a hook for tests, refused in production")
NO_HOOK = no_effect("it is another server's hook for its own tests")

_Build = partial(Variable, category="build-time")
_Debug = partial(Variable, category="debug/test")

BUILDING = (
    _Build(
        "CMAKE_BUILD_TYPE",
        "enum",
        "Release",
        "Flavour of a build with CMake.",
        NOT_IN_A_CONTAINER,
        no_effect("Slipway's kernels are built without CMake"),
        options=("Debug", "Release", "RelWithDebInfo"),
    ),
    _Build(
        "MAX_JOBS",
        "int",
        None,
        "Compilers that a build runs at a time.",
        NOT_IN_A_CONTAINER,
        implemented("read when the CPU kernels are built"),
        effective_default="one for each core",
        minimum=1,
    ),
    _Build(
        "NVCC_THREADS",
        "int",
        1,
        "Threads of nvcc in a build.",
        NOT_IN_A_CONTAINER,
        no_effect("Slipway's build runs no nvcc: Triton compiles for the device at run time"),
    ),
    _Build(
        "VERBOSE",
        "bool",
        False,
        "Makes an installation tell more.",
        reject("read by builds; the bare name may clash with other programs"),
        no_effect("Slipway's build does not read it, and says what it runs where that fails"),
    ),
    _Build(
        "VLLM_TARGET_DEVICE",
        "enum",
        "cuda",
        "Device that a build is for.",
        reject("read by builds; the image decides"),
        no_effect("one build serves on CPU and CUDA; --device chooses at start"),
        options=("cuda", "rocm", "neuron", "cpu", "openvino", "tpu", "xpu", "hpu"),
        harmless=("cpu",),
    ),
    _Build(
        "VLLM_TEST_USE_PRECOMPILED_NIGHTLY_WHEEL",
        "bool",
        False,
        "Makes a test build take last night's package.",
        NOT_IN_A_CONTAINER,
        NOTHING_PRECOMPILED,
    ),
    _Build(
        "VLLM_USE_PRECOMPILED",
        "bool",
        False,
        "Makes a build take compiled files and compile nothing.",
        NOT_IN_A_CONTAINER,
        NOTHING_PRECOMPILED,
    ),
)

DEBUGGING = (
    _Debug(
        "MODEL",
        "str",
        None,
        "Model of a container that is told none in another way.",
        reject("the server does not read it; name the model in spec.model"),
        no_effect("only an image's entry point reads it; name the model on the command line or in --config"),
    ),
    _Debug(
        "VLLM_CI_USE_S3",
        "bool",
        False,
        "Takes models from a test system's S3 store.",
        TEST_HOOK,
        refused("models come from where the command line says. Unset it"),
    ),
    _Debug(
        "VLLM_DISABLED_KERNELS",
        "list[str]",
        None,
        "Kernels for quantized weights to leave out of a comparison.",
        opt_in("for benchmarks only"),
        implemented("their matrices are dequantized as they are read"),
        options=("linear_w4a16", "linear_w8a8"),
    ),
    _Debug(
        "VLLM_LOG_BATCHSIZE_INTERVAL",
        "float",
        -1.0,
        "Time between log lines with the sizes of recent batches.",
        allow("more to log"),
        implemented(),
        harmless=(0.0,),
        unit="seconds",
    ),
    _Debug(
        "VLLM_SERVER_DEV_MODE",
        "bool",
        False,
        "Adds endpoints for debugging, such as one that empties the prefix cache.",
        opt_in("it opens administrative endpoints"),
        implemented(),
    ),
    _Debug(
        "VLLM_SKIP_WARMUP",
        "bool",
        False,
        "Serves before the engine is warm.",
        opt_in("the pod would be ready before it is fast"),
        implemented("on CUDA graphs are captured as steps miss them; a CPU needs no warm-up"),
    ),
    _Debug(
        "VLLM_TEST_DYNAMO_FULLGRAPH_CAPTURE",
        "bool",
        True,
        "Makes torch.compile capture whole graphs.",
        TEST_HOOK,
        NO_HOOK,
    ),
    _Debug(
        "VLLM_TEST_FORCE_FP8_MARLIN",
        "bool",
        False,
        "Takes the Marlin kernel for FP8 on every GPU.",
        TEST_HOOK,
        NO_HOOK,
    ),
    _Debug(
        "VLLM_TEST_FORCE_LOAD_FORMAT",
        "str",
        None,
        "Takes a load format whatever the arguments say.",
        reject("a hook for tests, refused in production; use --load-format"),
        refused("the load format is what --load-format says. Use that argument"),
    ),
    _Debug(
        "VLLM_TEST_FORCE_MIXED_CHUNKED_PREFILL",
        "bool",
        False,
        "Puts prompts and running requests into the same steps.",
        TEST_HOOK,
        no_effect("steps always mix prompts and running requests"),
    ),
    _Debug(
        "VLLM_TORCH_PROFILER_DIR",
        "path",
        None,
        "Folder for traces of steps, which POST /start_profile and /stop_profile begin and end.",
        opt_in("it needs a volume, and opens administrative endpoints"),
        implemented("by torch's profiler on CUDA, and on CPU by Slipway's own, which has no torch"),
    ),
    _Debug(
        "VLLM_TRACE_FUNCTION",
        "bool",
        False,
        "Writes every function call to a file.",
        opt_in("very slow, and it fills the disk"),
        implemented(
            "a file for each process in the temporary folder, which its log names; many times slower"
        ),
    ),
    _Debug(
        "VLLM_USE_DUMMY_WEIGHTS",
        "bool",
        False,
        "Serves random weights, in a container that is told of no load format.",
        reject("a hook for tests, refused in production; use --load-format dummy"),
        refused(
            "only an image's entry point reads it; elsewhere weights are what --load-format says. Use "
            "--load-format dummy"
        ),
    ),
)
