"""The process that holds tensors and runs programs.

Files here handle messages; run/ runs programs; engines/ has one file per array library. Each imports only the next.
"""
