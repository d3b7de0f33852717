// What the page of AG-UI imports.
export { HttpAgent, runHttpRequest, transformHttpEventStream } from "@ag-ui/client";
