// What the page of useChat imports: React, htm bound to it, and the hook with its helpers.
import htm from "htm";
import { createElement } from "react";

export { useEffect, useRef, useState } from "react";
export { createRoot } from "react-dom/client";
export { useChat } from "@ai-sdk/react";
export { DefaultChatTransport, getToolName, isToolUIPart, lastAssistantMessageIsCompleteWithApprovalResponses, lastAssistantMessageIsCompleteWithToolCalls } from "ai";
export const html = htm.bind(createElement);
