// A pasted error finds its section. The search of the theme wants every word of a query in one section, and a pasted
// text has addresses, names and numbers that no page has. So a long query is sent with the words of one section only:
// that of the page on trouble whose title it contains, else the one that has the rarest words of it.
(() => {
  const LONG = 4; // words from which on a query counts as pasted
  const SHARE = 0.7; // of the words of a title on the page on trouble
  const TROUBLE = "/howto/trouble/#";
  let separator = /\s+/u;
  let sections = [];

  const wordsOf = (html) => {
    const text = html.replace(/<[^>]*>|&\w+;/g, " ").normalize("NFKD").toLowerCase();
    return [...new Set(text.split(separator).filter(Boolean))];
  };

  const learn = ({ config, items }) => {
    separator = new RegExp(config.separator, "u");
    sections = items.map(({ location, title, text }) => ({
      isTrouble: location.includes(TROUBLE), // the theme makes locations absolute
      title: wordsOf(title),
      words: ` ${wordsOf(`${title} ${text}`).join(" ")}`,
    }));
  };

  const ofTrouble = (words) => {
    let best = [];
    for (const { isTrouble, title } of sections) {
      const shared = isTrouble ? title.filter((word) => words.includes(word)) : [];
      if (shared.length >= SHARE * title.length && shared.length > best.length) best = shared;
    }
    return best.length > 1 ? best : null;
  };

  const ofAnySection = (words) => {
    const having = words.map((word) => sections.map((section) => section.words.includes(` ${word}`)));
    const weights = having.map((all) => Math.log(sections.length / (1 + all.filter(Boolean).length)));
    const score = ({ title }, at) =>
      words.reduce((sum, word, n) => sum + (having[n][at] ? weights[n] * (title.includes(word) ? 2 : 1) : 0), 0);
    const scores = sections.map(score);
    const best = scores.indexOf(Math.max(...scores));
    return words.filter((_, n) => having[n][best]);
  };

  const shortened = (query) => {
    const words = wordsOf(query);
    if (words.length < LONG || !sections.length) return query;
    const kept = ofTrouble(words) ?? ofAnySection(words);
    return kept.length && kept.length < words.length ? kept.join(" ") : query;
  };

  // What the page sends to the worker of the search: first { type: 0, data: index }, then { type: 2, data: { input } }.
  const send = Worker.prototype.postMessage;
  Worker.prototype.postMessage = function postMessage(message, ...rest) {
    if (message?.type === 0 && message.data?.items) learn(message.data);
    if (message?.type === 2 && typeof message.data?.input === "string")
      message = { ...message, data: { ...message.data, input: shortened(message.data.input) } };
    return send.call(this, message, ...rest);
  };
})();
