"""Pictures: the report in HTML, its SVG plots, charts of mixed precision."""
