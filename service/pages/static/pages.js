// What pages can do beyond reading: copy buttons, and "/" for the search.
"use strict";

async function copied(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea"); // without TLS there is no clipboard
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  await copied(document.getElementById(button.dataset.copy).textContent);
  const words = button.firstChild;
  words.data = "Copied";
  setTimeout(() => { words.data = "Copy"; }, 1500);
  button.focus();
});

document.addEventListener("keydown", (event) => {
  const isTyping = event.target.matches("input, select, textarea");
  if (event.key !== "/" || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  const field = document.querySelector("[data-search]");
  if (!field) return;
  event.preventDefault();
  field.focus();
  field.select();
});

for (const button of document.querySelectorAll("[data-copy]")) button.hidden = false;
