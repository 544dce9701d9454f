"""Arguments of `slipway bench`: what is sent, how it arrives, what is reported."""

from __future__ import annotations

from slipway.args.declare import FilePath, Json, Url, arg, group

METRICS = ("ttft", "tpot", "itl", "e2el")
DEMO = "demo"
"""The model that is measured where none is named."""


@group("BenchLatency")
class Latency:
    """One batch of requests, all at once and again and again, on an engine without a server."""

    model: str = arg(DEMO)
    """Model to measure: a Hugging Face repository id or a local path. `demo` is that of `slipway demo`."""

    batch_size: int = arg(8, minimum=1)
    """Requests in the batch."""

    input_len: int = arg(32, minimum=1, unit="tokens")
    """Length of each prompt, of random tokens."""

    output_len: int = arg(128, minimum=1, unit="tokens")
    """Length of each output; no token ends one early."""

    num_iters_warmup: int = arg(10, minimum=0)
    """Batches that run before the measured ones."""

    num_iters: int = arg(30, minimum=1)
    """Batches that are measured."""

    output_json: FilePath | None = arg()
    """File for the latencies and their percentiles, as JSON."""


@group("BenchThroughput")
class Throughput:
    """Many requests, all at once, on an engine without a server."""

    model: str = arg(DEMO)
    """Model to measure: a Hugging Face repository id or a local path. `demo` is that of `slipway demo`."""

    output_json: FilePath | None = arg()
    """File for the figures, as JSON."""


@group("BenchServer")
class Server:
    """The server that is measured, any that speaks OpenAI's API, and how it is asked."""

    backend: str = arg(
        "openai",
        choices=("openai", "openai-chat", "openai-embeddings", "vllm-pooling"),
        words={"vllm": "openai"},
    )
    """Which API is measured: completions, chat completions, embeddings, or vLLM's route for all pooling."""

    base_url: Url | None = arg()
    """The server's address without the endpoint; wins over --host and --port."""

    host: str = arg("127.0.0.1")
    """The server's host."""

    port: int = arg(8000, minimum=1, maximum=65535)
    """The server's port."""

    endpoint: str | None = arg(pattern=r"/\S*", form="a path such as /v1/completions")
    """Path to post to. Unset takes the backend's: /v1/completions, /v1/chat/completions, /v1/embeddings or
    /pooling."""

    model: str | None = arg()
    """Model to ask for. Unset takes the first that the server lists."""

    tokenizer: str | None = arg()
    """Repository id or path of a tokenizer, to count the tokens of text datasets where the server has no
    /tokenize."""

    header: list[str] = arg(
        [], append=True, pattern=r"[!-9;<>-~]+=[ -~]*", form="a header such as name=value"
    )
    """HTTP header NAME=VALUE for each request. Give the argument once for each."""

    extra_body: Json = arg({})
    """Fields for each request's body, beside those that the other arguments say."""

    ready_check_timeout_sec: int = arg(0, minimum=0, unit="seconds")
    """How long to wait for a server that does not answer yet."""


@group("BenchDataset")
class Dataset:
    """The prompts, and how long their outputs may become."""

    dataset_name: str = arg(
        "random",
        choices=("random", "sharegpt", "sonnet", "prefix-repetition"),
        words={"prefix_repetition": "prefix-repetition"},
    )
    """Where prompts come from: random tokens, a file of conversations, lines of verse, or random tokens of
    which many prompts share the first ones."""

    dataset_path: FilePath | None = arg()
    """File of sharegpt: a JSON list of {"conversations": [{"from", "value"}]}. File of sonnet: lines of
    text, where Slipway's own are not wanted."""

    num_prompts: int = arg(1000, minimum=1)
    """Requests to send."""

    input_len: int | None = arg(minimum=1, unit="tokens")
    """Prompt length for random and sonnet; their own arguments win over it."""

    output_len: int | None = arg(minimum=1, unit="tokens")
    """Output length for every dataset; their own arguments win over it."""

    random_input_len: int | None = arg(minimum=1, unit="tokens")
    """Prompt length for random. Unset takes --input-len, else 1024."""

    random_output_len: int | None = arg(minimum=1, unit="tokens")
    """Output length for random. Unset takes --output-len, else 128."""

    random_range_ratio: float = arg(0.0, minimum=0, maximum=1)
    """Lengths for random are drawn evenly from length × (1 - ratio) to length × (1 + ratio)."""

    random_prefix_len: int = arg(0, minimum=0, unit="tokens")
    """Tokens that all prompts of random share, before those of --random-input-len."""

    sharegpt_output_len: int | None = arg(minimum=1, unit="tokens")
    """Output length for sharegpt. Unset takes --output-len, else the length of the file's own answer."""

    disable_shuffle: bool = arg(False)
    """Take the conversations of sharegpt in the order of the file."""

    sonnet_input_len: int | None = arg(minimum=1, unit="tokens")
    """Prompt length for sonnet, to the nearest line. Unset takes --input-len, else 550."""

    sonnet_output_len: int | None = arg(minimum=1, unit="tokens")
    """Output length for sonnet. Unset takes --output-len, else 150."""

    sonnet_prefix_len: int = arg(200, minimum=0, unit="tokens")
    """Tokens of the lines that all prompts of sonnet share, to the nearest line."""

    prefix_repetition_prefix_len: int = arg(256, minimum=1, unit="tokens")
    """Tokens that prompts share."""

    prefix_repetition_suffix_len: int = arg(256, minimum=1, unit="tokens")
    """Tokens of each prompt alone."""

    prefix_repetition_num_prefixes: int = arg(10, minimum=1)
    """Different prefixes, each for as many of the prompts."""

    prefix_repetition_output_len: int | None = arg(minimum=1, unit="tokens")
    """Output length. Unset takes --output-len, else 128."""


@group("BenchLoad")
class Load:
    """When requests are sent."""

    seed: int = arg(0, minimum=0)
    """Seed of the prompts and of their arrivals."""

    request_rate: float = arg("inf", above=0, words={"inf": "inf"})
    """Requests a second, arriving at random; inf sends all at once."""

    burstiness: float = arg(1.0, above=0)
    """Shape of the gamma distribution of the time between arrivals: 1 is a Poisson process, less comes in
    bursts, more comes evenly."""

    max_concurrency: int | None = arg(minimum=1)
    """Most requests in flight. Those that arrive beyond wait at the client, unmeasured."""

    num_warmups: int = arg(0, minimum=0)
    """Requests that are sent before the measured ones, one after the other."""


@group("BenchSampling")
class Sampling:
    """How the server is asked to draw tokens."""

    temperature: float | None = arg(minimum=0)
    """0, which is taken where this is unset, draws the likeliest token."""

    top_p: float | None = arg(minimum=0, maximum=1)
    """Share of probability that is drawn from."""

    top_k: int | None = arg(minimum=-1)
    """Tokens that are drawn from."""

    min_p: float | None = arg(minimum=0, maximum=1)
    """Least probability of a token, relative to the likeliest."""

    frequency_penalty: float | None = arg(minimum=-2, maximum=2)
    """Penalty for each time that a token stands in the output."""

    presence_penalty: float | None = arg(minimum=-2, maximum=2)
    """Penalty for a token that stands in the output."""

    repetition_penalty: float | None = arg(above=0)
    """Divisor for a token that stands in the prompt or the output."""

    ignore_eos: bool | None = arg(negatable=True, tri_state=True)
    """Let no end-of-sequence token end an output. Unset does so for random and prefix-repetition, whose
    outputs are to have their length."""


@group("BenchReport")
class Report:
    """What is printed and what is kept."""

    percentile_metrics: list[str] | None = arg(comma_list=True, choices=METRICS)
    """Latencies to report: time to first token, time per output token, inter-token latency, end-to-end
    latency. As one value with commas. Unset takes ttft,tpot,itl; e2el where answers have no tokens."""

    metric_percentiles: list[float] = arg([99.0], comma_list=True, minimum=0, maximum=100)
    """Percentiles of them, beside mean, median and standard deviation. As one value with commas."""

    goodput: list[str] = arg(
        [], pattern=r"(ttft|tpot|e2el):(\d+\.?\d*|\.\d+)", form="an objective such as ttft:200"
    )
    """Objectives that a good request meets, in milliseconds: ttft:200 tpot:50 e2el:5000."""

    label: str | None = arg(pattern=r"[^/]+", form="a part of a file's name")
    """Name of this run in the result. Unset takes the backend's."""

    metadata: list[str] = arg([], pattern=r"[^=]+=.*", form="a pair such as version=1.2")
    """Pairs NAME=VALUE to keep in the result."""

    save_result: bool = arg(False)
    """Write the result as JSON."""

    save_detailed: bool = arg(False)
    """Write the latencies and the text of each request too."""

    result_dir: FilePath | None = arg()
    """Folder for the result; it is made where there is none. Unset takes this folder."""

    result_filename: str | None = arg()
    """Name of the result. Unset makes one of label, rate, model and time."""

    plot: FilePath | None = arg()
    """SVG file for a plot of how the reported latencies are distributed."""

    disable_tqdm: bool = arg(False)
    """Draw no progress bar on a terminal."""
