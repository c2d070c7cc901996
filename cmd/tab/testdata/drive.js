"use strict";
// Reports the page's text to the test, and closes the page when the test asks for it.

setInterval(async () => {
  const answer = await fetch("seen", {method: "POST", body: document.body.innerText});
  if (await answer.text() === "close") location.href = "about:blank";
}, 200);
