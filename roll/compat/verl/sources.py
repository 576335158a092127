"""The `data_source` names whose scorer in verl has its like here."""

GSM8K = ("openai/gsm8k",)
BOXED = ("lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500")
ANSWERED = (
    "math", "math_dapo", "math_dapo_reasoning", "aime", "aime24", "aime25", "aime2024", "aime2025", "aime_2024", "aime_2025",
    "aime-2024",
    "aime-2025", "numina_aops_forum", "numina_synthetic_math", "numina_amc_aime", "numina_synthetic_amc", "numina_cn_k12",
    "numina_olympiads",
)  # fmt: skip
SOURCES = (*GSM8K, *BOXED, *ANSWERED)
