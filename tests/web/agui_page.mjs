// An HttpAgent that connects: it asks for the conversation so far, and for the run that is under way.
export const agentOf = ({ HttpAgent, runHttpRequest, transformHttpEventStream }) => class Agent extends HttpAgent {
  connect(input) {
    return transformHttpEventStream(runHttpRequest(() => this.fetch(`${this.url}/connect`, this.requestInit(input))));
  }
};
