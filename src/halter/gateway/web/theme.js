// Applied before the first paint, so it is not a module: the colours that were chosen in the settings.

document.documentElement.dataset.theme = localStorage.getItem("halter.theme") ?? "";
