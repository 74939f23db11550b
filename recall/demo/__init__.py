"""A made-up tenant: a water company's sites, machines, jobs, notes and people, with questions and their answers."""

from recall.demo.files import ENTITIES, write_jsonl
from recall.demo.generator import generate
from recall.demo.questions import QUESTIONS, Question

__all__ = ["ENTITIES", "QUESTIONS", "Question", "generate", "write_jsonl"]
