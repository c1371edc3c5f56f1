// Buttons that copy the code beside them. Where the clipboard is not allowed, as in the frame of a notebook, the code is selected.
for (const button of document.querySelectorAll("button.copy")) {
  button.hidden = false;
  const code = button.previousElementSibling;
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "selected";
    }
    setTimeout(() => {
      button.textContent = "copy";
    }, 1500);
  });
}
