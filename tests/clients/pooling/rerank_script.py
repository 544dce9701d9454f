"""Embeddings, and rerankings as Cohere and Jina have them, by clients: `rerank_script.py URL MODEL`."""

from __future__ import annotations

import sys
from typing import Any

import cohere
import litellm
from openai import OpenAI

URL, MODEL = sys.argv[1:]
QUERY = "What is the capital of France?"
DOCUMENTS = ["Bananas are yellow.", "Paris is the capital of France.", "Cats sleep all day."]
BEST = 1

answers: dict[str, Any] = {}
for version, client in {
    "v1": cohere.Client("none", base_url=URL),
    "v2": cohere.ClientV2("none", base_url=URL),
}.items():
    answers[version] = client.rerank(model=MODEL, query=QUERY, documents=DOCUMENTS, top_n=2)
for provider, place in {"cohere": "/v2/rerank", "jina_ai": "", "hosted_vllm": ""}.items():
    answers[provider] = litellm.rerank(
        model=f"{provider}/{MODEL}",
        query=QUERY,
        documents=DOCUMENTS,
        top_n=2,
        api_key="none",
        api_base=URL + place,
    )
found = {}
for form, answer in answers.items():
    results = [one if isinstance(one, dict) else one.model_dump() for one in answer.results]
    found[form] = [(one["index"], round(one["relevance_score"], 5)) for one in results]
assert len({tuple(one) for one in found.values()}) == 1, found
(best, score), (_, second) = found["v2"]
assert best == BEST
assert score > second

openai = OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
made = openai.embeddings.create(model=MODEL, input=[QUERY, DOCUMENTS[BEST]]).data
cosine = sum(one * other for one, other in zip(made[0].embedding, made[1].embedding, strict=True))
assert abs(cosine - score) < 1e-4, (cosine, score)
alone = litellm.embedding(model=f"hosted_vllm/{MODEL}", input=[QUERY], api_base=f"{URL}/v1", api_key="none")
assert alone.data[0]["embedding"] == made[0].embedding
