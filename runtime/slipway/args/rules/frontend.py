"""Rules of the HTTP server."""

from __future__ import annotations

from slipway.args.rules.rule import Given, Rule, Values, flag
from slipway.metrics import METRICS, parse_version


def _credentials_for_all(values: Values, given: Given) -> str | None:
    if not values["allow_credentials"] or "*" not in values["allowed_origins"]:
        return None
    return (
        "--allow-credentials with the origin * lets every web page use the credentials of its "
        "visitors. Name the pages in --allowed-origins."
    )


def _keys_of_all_clients(values: Values, given: Given) -> str | None:
    if all(map(str.isascii, values["api_key"] or ())):
        return None
    return (
        "An API key has letters that are not ASCII: OpenAI's and Anthropic's clients cannot send it. Others "
        "have to send it as UTF-8."
    )


def _client_certificates(values: Values, given: Given) -> str | None:
    if not values["ssl_cert_reqs"] or values["ssl_ca_certs"]:
        return None
    return "--ssl-cert-reqs has no authority to check client certificates by: give --ssl-ca-certs."


def _tls_settings(values: Values, given: Given) -> str | None:
    idle = [flag(name) for name in ("ssl_ca_certs", "ssl_cert_reqs", "enable_ssl_refresh") if values[name]]
    if not idle or values["ssl_certfile"]:
        return None
    return f"{' and '.join(idle)} has no effect without --ssl-certfile and --ssl-keyfile."


def _processes_share_an_engine(values: Values, given: Given) -> str | None:
    count = values["api_server_count"]
    if not values["disable_frontend_multiprocessing"] or count == 1:
        return None
    return (
        f"--api-server-count {count} needs an engine in a process of its own, and "
        "--disable-frontend-multiprocessing puts it into the API's. Drop one of them."
    )


def _nothing_hidden(values: Values, given: Given) -> str | None:
    asked = values["show_hidden_metrics_for_version"]
    useful = {version for metric in METRICS for version in metric.shown_for}
    if asked is None or parse_version(asked) in useful:
        return None
    versions = " or ".join("{}.{}".format(*version) for version in sorted(useful))
    return (
        f"--show-hidden-metrics-for-version {asked} shows nothing more: what is hidden now was deprecated or "
        f"hidden in {versions}. Give one of them."
    )


FRONTEND: tuple[Rule, ...] = (
    Rule(
        "api_server_count",
        _processes_share_an_engine,
        cel="!has(self.apiServerCount) || self.apiServerCount == 1"
        " || !has(self.disableFrontendMultiprocessing) || !self.disableFrontendMultiprocessing",
        message="apiServerCount above 1 needs an engine in a process of its own:"
        " drop disableFrontendMultiprocessing",
    ),
    Rule("api_key", _keys_of_all_clients, warns=True),
    Rule("allow_credentials", _credentials_for_all, warns=True),
    Rule("ssl_cert_reqs", _client_certificates, warns=True),
    Rule("ssl_certfile", _tls_settings, warns=True),
    Rule("show_hidden_metrics_for_version", _nothing_hidden, warns=True),
)
