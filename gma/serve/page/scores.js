// Quality and lag in the browser: BLEU as sacreBLEU's 13a counts it, AL and LAAL in words.

const ORDER = 4;

export function tokens(text) {
  return text
    .replace(/([{-~[-` -&(-+:-@/])/g, " $1 ")
    .replace(/([^0-9])([.,])/g, "$1 $2 ")
    .replace(/([.,])([^0-9])/g, " $1 $2")
    .replace(/([0-9])(-)/g, "$1 $2 ")
    .split(/\s+/)
    .filter(Boolean);
}

function grams(words, order) {
  const counts = new Map();
  for (let start = 0; start + order <= words.length; start += 1) {
    const gram = words.slice(start, start + order).join(" ");
    counts.set(gram, (counts.get(gram) ?? 0) + 1);
  }
  return counts;
}

/** Of a corpus of [hypothesis, reference]; exponential smoothing as sacreBLEU's default. null without words. */
export function bleu(pairs) {
  const right = Array(ORDER).fill(0), total = Array(ORDER).fill(0);
  let written = 0, expected = 0;
  for (const [hypothesis, reference] of pairs) {
    const [ours, theirs] = [tokens(hypothesis), tokens(reference)];
    written += ours.length;
    expected += theirs.length;
    for (let order = 1; order <= ORDER; order += 1) {
      const known = grams(theirs, order);
      for (const [gram, count] of grams(ours, order)) {
        total[order - 1] += count;
        right[order - 1] += Math.min(count, known.get(gram) ?? 0);
      }
    }
  }
  if (!written || !expected || !right[0]) return written && expected ? 0 : null;
  let logarithms = 0, smoothing = 1, orders = 0;
  for (let order = 0; order < ORDER; order += 1) {
    if (!total[order]) break;
    orders += 1;
    if (!right[order]) smoothing *= 2;
    logarithms += Math.log(right[order] ? right[order] / total[order] : 1 / (smoothing * total[order]));
  }
  if (orders < ORDER) return 0;
  return 100 * Math.min(1, Math.exp(1 - expected / written)) * Math.exp(logarithms / ORDER);
}

/** Average lagging of words written after so many source words; against |Y| = target (AL), or the longer side (LAAL). */
export function averageLagging(delays, source, target) {
  if (!delays.length || !source || !target) return null;
  const rate = target / source;
  let sum = 0, count = 0;
  for (const [index, delay] of delays.entries()) {
    sum += delay - index / rate;
    count += 1;
    if (delay >= source) break;
  }
  return sum / count;
}

/** Of a sentence that has ended; reference may be empty. */
export function scoreOf(sentence, reference) {
  const delays = sentence.written.map((word) => word.source_words);
  const text = sentence.written.map((word) => word.word).join(" ");
  const expected = reference ? reference.split(/\s+/).filter(Boolean).length : delays.length;
  const source = sentence.heard.length;
  return {
    text,
    reference,
    bleu: reference ? bleu([[text, reference]]) : null,
    al: averageLagging(delays, source, expected),
    laal: averageLagging(delays, source, Math.max(expected, delays.length)),
  };
}

/** Of a talk, in words for people. */
export function averages(scores) {
  const known = scores.filter(({ reference }) => reference);
  const found = scores.filter(({ al }) => al !== null);
  const mean = (pick) => (found.length ? (found.reduce((sum, one) => sum + pick(one), 0) / found.length).toFixed(2) : "–");
  const quality = bleu(known.map(({ text, reference }) => [text, reference]));
  const all = `BLEU ${quality?.toFixed(1) ?? "–"} of ${known.length} sentence${known.length === 1 ? "" : "s"}, `;
  return `${known.length ? all : ""}AL ${mean(({ al }) => al)}, LAAL ${mean(({ laal }) => laal)} words`;
}
