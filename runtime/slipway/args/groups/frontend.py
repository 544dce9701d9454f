"""Arguments of the HTTP server and of the process in front of the engine."""

from __future__ import annotations

from slipway.args.declare import Disposition, FilePath, Json, Key, arg, group


@group("Frontend")
class Frontend:
    """The OpenAI-compatible HTTP server: where it listens, who may call it, how it answers."""

    model_tag: str | None = arg(positional=True, in_spec=False)
    """Model to serve: a Hugging Face repository id or a local path.

    May be left out where --model or the configuration file names the model; it wins over both.
    """

    allow_credentials: bool = arg(False)
    """CORS: browsers may send credentials. Together with a wildcard origin this is a hazard."""

    allowed_headers: list[str] = arg(["*"], json_array=True)
    """CORS: request headers that may be sent, as one JSON array."""

    allowed_methods: list[str] = arg(["*"], json_array=True)
    """CORS: HTTP methods that may be used, as one JSON array."""

    allowed_origins: list[str] = arg(["*"], json_array=True)
    """CORS: origins that may call the API, as one JSON array such as '["https://example.com"]'."""

    api_key: list[str] | None = arg(adds_up=True, secret=True, twins=("VLLM_API_KEY",), in_spec=False)
    """Secrets of which callers present one as an HTTP bearer token. Unset leaves the API open.

    Several keys are words behind it, or the flag is repeated; nothing in a key divides it. The command line
    of a process is visible to others on the machine: prefer VLLM_API_KEY, which holds one.
    """

    api_server_count: int = arg(1, aliases=("-asc",), minimum=1)
    """API processes in front of the engine, which take connections from one listening socket.

    More than one pays where a single process, which tokenizes, parses and streams for everyone, has no
    processor time left while the engine waits; each takes as much memory as one alone.
    """

    chat_template: str | None = arg()
    """Chat template: a file, or the Jinja text itself on one line. Unset takes the tokenizer's own."""

    chat_template_content_format: str = arg("auto", choices=("auto", "string", "openai"))
    """How the template sees message content: flattened to a string, or as OpenAI's list of parts.

    auto reads the template to find out.
    """

    config: FilePath | None = arg(once=True, in_spec=False)
    """YAML file of long option names and values. The command line wins over it, it wins over defaults."""

    data_parallel_start_rank: int = arg(0, aliases=("-dpr",), minimum=0, in_spec=False)
    """First data-parallel rank on this node, where it is not the head node."""

    disable_fastapi_docs: bool = arg(False)
    """Serve neither the console nor the OpenAPI document with its Swagger and ReDoc pages."""

    disable_frontend_multiprocessing: bool = arg(False)
    """Run the HTTP server and the engine in one process."""

    disable_uvicorn_access_log: bool = arg(False)
    """Log no line for each HTTP request."""

    enable_auto_tool_choice: bool = arg(False, requires=("tool_call_parser",))
    """Let the model decide to call tools (tool_choice: auto).

    Without it that works where a parser is named, or the chat template shows which one fits the model.
    """

    enable_prompt_tokens_details: bool = arg(False)
    """Put prompt_tokens_details, with the cached tokens, into the usage of answers."""

    enable_request_id_headers: bool = arg(False)
    """Send X-Request-Id with every answer."""

    enable_server_load_tracking: bool = arg(False)
    """Count the requests in flight and report them at /load."""

    enable_ssl_refresh: bool = arg(False)
    """Read the TLS files again when they change, as cert-manager's do."""

    enable_tokenizer_info_endpoint: bool = arg(False)
    """Answer GET /tokenizer_info with the tokenizer's configuration and the chat template in effect."""

    headless: bool = arg(False, in_spec=False)
    """Start engine processes only, on a secondary node of a data-parallel group."""

    help: str | None = arg(aliases=("-h",), optional_value=True, about_command=True, in_spec=False)
    """Print help and exit.

    --help=listgroup lists the groups, --help=GROUP shows one, --help=max-num-seqs one argument,
    --help=max every argument with that word in it, --help=page everything in a pager.
    """

    host: str = arg("127.0.0.1", in_spec=False)
    """Address to listen on. A container passes `::`: every address of IPv6 and of IPv4."""

    log_config_file: FilePath | None = arg()
    """Logging configuration, JSON, for the engine's and the HTTP server's loggers.

    Loggers that it does not name go on as they are, unless it sets disable_existing_loggers.
    """

    lora_modules: list[Json] | None = arg(
        item_pair=("name", "path"),
        keys={
            "name": Key("str"),
            "path": Key("str", aliases=("local_path",)),
            "base_model_name": Key("str", nullable=True),
        },
        open_keys=False,
        no_effect_without=("enable_lora",),
    )
    """LoRA adapters to load at start, each a model of the API: name=path, or a JSON object with name,
    path and perhaps base_model_name, the parent that /v1/models shows.

    The path is a folder as PEFT saves it, or a repository on the hub.
    """

    max_concurrency: int | None = arg(minimum=1)
    """Requests admitted at the same time; the next one is answered 429. Unset admits all.

    Not the size of a batch: that is --max-num-seqs.
    """

    max_num_queued_reqs: int | None = arg(minimum=0, words={"none": None})
    """Requests that are open at the same time, computed or waiting; the next one is answered 503, so that a
    load balancer tries another server. Unset admits all."""

    max_log_len: int | None = arg(minimum=0, words={"none": None, "unlimited": None})
    """Prompt characters, or token ids, that the log shows of a request. Unset shows all."""

    middleware: list[str] = arg([], append=True, security_sensitive=True)
    """ASGI middleware by import path, a class or an async function. Repeat the flag for each.

    It runs arbitrary code in the server.
    """

    port: int = arg(8000, minimum=1, maximum=65535, in_spec=False)
    """TCP port to listen on."""

    prompt_adapters: list[str] | None = arg(no_effect_without=("enable_prompt_adapter",))
    """Prompt adapters to load at start, each a model of the API: name=path.

    The path is a folder as PEFT saves one of prompt tuning or p-tuning, or a repository on the hub.
    """

    response_role: str = arg("assistant")
    """Role of generated messages, where the request asks for a generation prompt."""

    return_tokens_as_token_ids: bool = arg(False)
    """In log probabilities, write each token as token_id:N, so that tokens without text survive."""

    root_path: str | None = arg()
    """URL prefix under which a reverse proxy shows the server."""

    ssl_ca_certs: FilePath | None = arg(in_spec=False)
    """Certificates of the authorities that sign client certificates."""

    ssl_cert_reqs: int = arg(0, minimum=0, maximum=2)
    """Client certificates: 0 not asked for, 1 optional, 2 required (breaks plain kubelet probes)."""

    ssl_certfile: FilePath | None = arg(requires=("ssl_keyfile",), in_spec=False)
    """Certificate of the server, PEM. The API then speaks HTTPS only."""

    ssl_keyfile: FilePath | None = arg(requires=("ssl_certfile",), in_spec=False)
    """Private key of the server, PEM."""

    tool_call_parser: str | None = arg(
        choices=(
            "deepseek_v3",
            "deepseek_v31",
            "deepseek_v32",
            "ernie45",
            "functiongemma",
            "gigachat3",
            "glm45",
            "glm47",
            "granite",
            "granite-20b-fc",
            "granite4",
            "hermes",
            "hunyuan_a13b",
            "internlm",
            "jamba",
            "kimi_k2",
            "llama3_json",
            "llama4_json",
            "llama4_pythonic",
            "longcat",
            "minimax_m1",
            "minimax_m2",
            "mistral",
            "olmo3",
            "openai",
            "phi4_mini_json",
            "pythonic",
            "qwen",
            "qwen3_coder",
            "qwen3_xml",
            "seed_oss",
            "step3",
            "step3p5",
            "xlam",
        ),
        open_choices=True,
        extended_by="tool_parser_plugin",
    )
    """How the model's text becomes tool calls; it must fit the model family.

    Without it the parser is chosen by the chat template and the architecture where they leave no doubt; the
    log says which, and why. An empty name chooses none.
    Another name is accepted where --tool-parser-plugin may define it.
    """

    default_chat_template_kwargs: Json = arg({})
    """Variables of the chat template for every request; those of a request's chat_template_kwargs win."""

    disable_access_log_for_endpoints: list[str] = arg([], comma_list=True)
    """Paths whose requests the HTTP server leaves out of its log, such as /ready,/metrics."""

    enable_per_request_metrics: bool = arg(False)
    """Tell a request's times in `metrics` of its answer, or of its stream's last event with the usage: to the
    first token, between tokens, in the queue, tokens a second. Of requests with one output."""

    enable_force_include_usage: bool = arg(False)
    """Tell the usage at the end of every stream, as a request's stream_options.include_usage asks for it."""

    sse_keep_alive_interval: int = arg(1, minimum=0, maximum=3600, unit="seconds")
    """Silence after which a stream sends a comment, so that proxies keep it open. 0: it sends none."""

    stream_interval: int = arg(1, minimum=1, unit="tokens")
    """Tokens that each event of a stream holds, at least; the first event comes with the first token. More
    than 1 spares processor time."""

    strict_requests: bool = arg(False)
    """Refuse a request with a field that its route does not have, with status 400.

    Without it such a field is left aside: the answer's header Warning names it, and the log does so once.
    """

    tool_parser_plugin: FilePath | None = arg(security_sensitive=True)
    """Python file with more tool call parsers, in FORMATS by name. It runs arbitrary code in the server."""

    trust_request_chat_template: bool = arg(False)
    """Let a request bring its own chat_template. It runs in the sandbox of all templates.

    A template reaches nothing but the chat, within 10 s, but a few calls of a text's own methods can fill the
    memory: give this where clients are trusted so far.
    """

    uds: FilePath | None = arg(in_spec=False)
    """Path of a Unix socket to listen on, instead of --host and --port.

    A socket that a server has left there is replaced.
    """

    uvicorn_log_level: str = arg("info", choices=("critical", "error", "warning", "info", "debug", "trace"))
    """What the HTTP server logs."""


@group("AsyncEngine")
class AsyncEngine:
    """The engine seen from the server."""

    enable_log_requests: bool = arg(False, negatable=True)
    """Log the prompts and parameters of each request; at VLLM_LOGGING_LEVEL=DEBUG its tokens, too.

    Each request has one line in any case, once it has ended: its model, numbers of tokens, times and how it
    ended. That line has nothing that users write.
    """

    enable_log_outputs: bool = arg(False, requires=("enable_log_requests",))
    """Log the text of each output, too, once the request has ended."""

    disable_log_requests: bool = arg(False)
    """Log no prompts, even with --enable-log-requests."""

    engine_use_ray: bool = arg(
        False,
        disposition=Disposition.WARN,
        reason="the engine runs in a process of its own without it",
    )
    """Old switch that put the engine into a process of its own."""


@group("EngineConfig")
class Engine:
    """The engine as a whole."""

    disable_log_stats: bool = arg(False)
    """Log no statistics every few seconds. /metrics is not affected."""

    use_v2_block_manager: bool = arg(True, disposition=Disposition.WARN, reason="there is one block manager")
    """Old choice between two block managers."""
