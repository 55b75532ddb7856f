// Times as the reader's clock has them; the server writes UTC.
const shown = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

export function localTimes(within) {
  for (const element of within.querySelectorAll("time[datetime]")) {
    const when = new Date(element.dateTime);
    if (Number.isNaN(when.valueOf())) continue;
    element.title = element.dateTime;
    const text = shown.format(when);
    if (element.textContent !== text) element.textContent = text;
  }
}
