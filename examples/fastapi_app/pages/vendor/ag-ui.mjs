// What the page of AG-UI imports.
export { HttpAgent } from "@ag-ui/client";
