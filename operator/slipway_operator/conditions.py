"""The conditions of an InferenceService, and what each says when it is True."""

from __future__ import annotations

from collections.abc import Mapping

TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"

VALID = "Valid"
ARGS_COMPATIBLE = "ArgsCompatible"
SCHEDULED = "Scheduled"
MODEL_LOADED = "ModelLoaded"
FITS = "Fits"
AVAILABLE = "Available"
PROGRESSING = "Progressing"
READY = "Ready"
DRIFTED = "Drifted"
UPGRADE_AVAILABLE = "UpgradeAvailable"
UNMONITORED = "Unmonitored"
RECONCILING = "Reconciling"
STALLED = "Stalled"

CONDITIONS: Mapping[str, str] = {
    VALID: "The operator can render the spec, and its policy admits it.",
    ARGS_COMPATIBLE: "The image takes the arguments. Only there where it is not the operator's own, and "
    "Unknown where no profile has its schema.",
    SCHEDULED: "Every pod of the current template exists and has a node.",
    MODEL_LOADED: "A server of the current template has loaded the model.",
    FITS: "The model fits the memory of its device, or of its container, by the estimate that the server "
    "makes before it reads weights; `.status.memory` has the numbers. Only there once a server of the "
    "current template has said it.",
    AVAILABLE: "At least one pod admits requests: the URL answers.",
    PROGRESSING: "The rollout moves on, or has arrived.",
    READY: "All that the spec asks for is there: every replica runs the current template and admits "
    "requests. Absent while no replica is asked for, so that `helm --wait` ends and `kubectl wait` does not.",
    DRIFTED: "Only there while true: the Deployment has a variable that someone else added.",
    UPGRADE_AVAILABLE: "Only there while true: this operator would render other pods; they stay as they are.",
    UNMONITORED: "Only there while true: the cluster lacks the kind that would have the metrics scraped.",
    RECONCILING: "Only there while true: kstatus reads it as *InProgress*.",
    STALLED: "Only there while true: nothing moves until someone acts. kstatus reads it as *Failed*.",
}
"""Condition → what it says when it is True."""
