// The talk as files: plain text, subtitles, and SimulEval's log.

const words = (list) => list.map((item) => item.word).join(" ");

export function asText(transcript) {
  return transcript.spoken.map((one) => `${words(one.heard)}\n${words(one.written)}\n`).join("\n");
}

function clock(milliseconds, point) {
  const all = Math.max(0, Math.round(milliseconds));
  const pad = (number, digits = 2) => String(number).padStart(digits, "0");
  const seconds = Math.floor(all / 1000);
  const time = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, seconds % 60].map((x) => pad(x)).join(":");
  return `${time}${point}${pad(all % 1000, 3)}`;
}

function cues(transcript) {
  const sentences = transcript.spoken.filter((one) => one.written.length);
  const begin = sentences[0]?.heard[0].at ?? 0;
  return sentences.map((one, index) => {
    const start = one.written[0].at - begin;
    const next = sentences[index + 1]?.written[0].at ?? Infinity;
    const end = Math.max(start + 500, Math.min(one.written.at(-1).at - begin + 2000, next - begin));
    return { start, end, text: words(one.written).replaceAll("-->", "→") };
  });
}

export function asSrt(transcript) {
  return cues(transcript)
    .map(({ start, end, text }, index) => `${index + 1}\n${clock(start, ",")} --> ${clock(end, ",")}\n${text}\n`)
    .join("\n");
}

export function asVtt(transcript) {
  const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
  const lines = cues(transcript).map(
    ({ start, end, text }) => `${clock(start, ".")} --> ${clock(end, ".")}\n${escaped(text)}\n`,
  );
  return `WEBVTT\n\n${lines.join("\n")}`;
}

/** SimulEval's instances.log: a JSON object a line. */
export function asInstances(transcript, references = []) {
  return transcript.spoken
    .filter((one) => one.ended)
    .map((one, index) => {
      const delays = one.written.map((word) => word.source_words);
      const log = {
        index,
        prediction: words(one.written),
        delays,
        elapsed: [],
        prediction_length: delays.length,
        reference: references[index] ?? "",
        source: words(one.heard),
        source_length: one.heard.length,
      };
      return JSON.stringify(log) + "\n";
    })
    .join("");
}

export function save(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/plain;charset=utf-8" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
