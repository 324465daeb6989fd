// Sends the token once; from then on a cookie that no script can read stands for it.
const form = document.getElementById("login");
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const token = document.getElementById("token").value;
  const answer = await fetch("login", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ token }),
  });
  if (answer.ok) {
    location.replace("./");
  } else {
    document.getElementById("said").textContent = (await answer.json()).error;
  }
});
