"""Every metric once, the same for every objective.

`catalogue` (no torch) names and defines the keys; `update.UpdateDiagnostics` accumulates them over
an update, `window.EssWindow` over the last updates; `responses.response_record` is one row per
response.
"""
