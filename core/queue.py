"""The queue's words: a hint is a job id under a task name. Losing every message costs time, never a job."""

TRAIN_QUEUE = "podium.train"
TRAIN_TASK = "podium.train_job"
