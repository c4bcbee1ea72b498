// Runs before the first paint, so that a page does not flash in the wrong colours.
const chosen = localStorage.getItem("penstock-theme");
if (chosen) document.documentElement.dataset.theme = chosen;
