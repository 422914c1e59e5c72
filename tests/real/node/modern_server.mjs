// A server of the official TypeScript SDK 2.x that speaks the modern era alone, for the tests: it echoes, asks
// for input before it answers (multi-round-trip requests), and tells subscribers what has changed.

import { randomBytes } from 'node:crypto';
import { acceptedContent, createRequestStateCodec, fromJsonSchema, inputRequired, McpServer } from '@modelcontextprotocol/server';
import { serveStdio } from '@modelcontextprotocol/server/stdio';

const codec = createRequestStateCodec({ key: randomBytes(32) });
const strings = (...names) =>
    fromJsonSchema({
        type: 'object',
        properties: Object.fromEntries(names.map(name => [name, { type: 'string' }])),
        required: names
    });
const say = text => ({ content: [{ type: 'text', text }] });

function make() {
    const server = new McpServer(
        { name: 'modern-server', version: '1.0.0' },
        {
            capabilities: { tools: { listChanged: true }, resources: { subscribe: true, listChanged: true } },
            requestState: { verify: codec.verify }
        }
    );
    server.registerTool('echo', { inputSchema: strings('text') }, ({ text }) => say(text));

    // The state the client must bring back holds the label: an answer that is given for another's state shows.
    server.registerTool('confirm', { inputSchema: strings('label') }, async ({ label }, ctx) => {
        const state = ctx.mcpReq.requestState();
        const given = acceptedContent(ctx.mcpReq.inputResponses, 'word');
        if (state !== undefined && given !== undefined) {
            return say(`${label}: ${state.label} was confirmed with ${given.word}`);
        }
        const requestedSchema = { type: 'object', properties: { word: { type: 'string' } }, required: ['word'] };
        return inputRequired({
            inputRequests: { word: inputRequired.elicit({ message: `A word for ${label}?`, requestedSchema }) },
            requestState: await codec.mint({ label })
        });
    });

    server.registerTool('touch', { inputSchema: strings('uri') }, async ({ uri }) => {
        await server.server.sendResourceUpdated({ uri });
        return say(`touched ${uri}`);
    });
    server.registerTool('grow', { inputSchema: strings('name') }, ({ name }) => {
        server.registerTool(name, { inputSchema: strings() }, () => say(name));
        return say(`grown ${name}`);
    });
    server.registerResource('note', 'note://1', {}, uri => ({ contents: [{ uri: uri.href, text: 'a note' }] }));
    return server;
}

serveStdio(make, { legacy: 'reject' });
