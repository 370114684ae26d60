"""What lies beside the page in report/: each result's answers, for the browser of answers, and each table's file."""
