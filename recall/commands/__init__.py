"""The commands of `recall`, one module a concern. They import light: what a command needs, it imports when it runs."""
