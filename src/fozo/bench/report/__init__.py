"""The report of ``fozo report``: tables as values, charts as SVG, and the page that holds them."""
