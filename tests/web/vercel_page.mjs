// The class that useChat of React is made of, with its state in an object.
export const pageOf = (ai) => class Page extends ai.AbstractChat {
  constructor(options) {
    const { messages = [], ...rest } = options;
    const state = {
      status: "ready", error: undefined, messages,
      pushMessage(m) { this.messages = [...this.messages, m]; },
      popMessage() { this.messages = this.messages.slice(0, -1); },
      replaceMessage(i, m) { this.messages = this.messages.map((each, at) => (at === i ? structuredClone(m) : each)); },
      snapshot: (x) => structuredClone(x),
    };
    super({ ...rest, state });
  }
};
