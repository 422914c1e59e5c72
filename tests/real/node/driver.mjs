// Clients of the official TypeScript SDKs, 1.x and 2.x, that the tests drive: one JSON object a line on stdin,
// one on stdout for each, by its "id". What each operation takes and gives stands in tests/real/drivers.py.
// Every client is started as a host starts one: it launches a command and speaks to it over its stdio.

import { createInterface } from 'node:readline';
import { Client as ModernClient } from '@modelcontextprotocol/client';
import { StdioClientTransport as ModernTransport } from '@modelcontextprotocol/client/stdio';
import { Client as LegacyClient } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport as LegacyTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import {
    CreateMessageRequestSchema,
    ElicitRequestSchema,
    ListRootsRequestSchema
} from '@modelcontextprotocol/sdk/types.js';

const MODERN = '2026-07-28';
const MODES = { auto: 'auto', legacy: 'legacy', modern: { pin: MODERN } };

const clients = new Map();

function refusal(error) {
    // SDKs keep the server's error, if there is one, as the cause of their own.
    const cause = error.cause?.code === undefined ? {} : error.cause;
    return {
        code: cause.code ?? error.code ?? null,
        message: [error.message, cause.message].filter(Boolean).join(': '),
        data: cause.data ?? error.data ?? null
    };
}

const ALL_CAPABILITIES = { sampling: {}, elicitation: { form: {}, url: {} }, roots: { listChanged: true } };

// What a client called `name` answers to whatever a server asks; `note` is told that it was asked, `report`
// tells the server that work goes on. A client called "Tarry" works until its work is given up.
function answers(name, note) {
    const work = async (kind, { token, report, signal }) => {
        note(kind);
        if (token !== undefined) {
            await report({ method: 'notifications/progress', params: { progressToken: token, progress: 1 } });
        }
        if (name === 'Tarry') {
            await new Promise(resolve => signal.addEventListener('abort', resolve, { once: true }));
            note(`${kind} given up`);
        }
    };
    return {
        async sampling(_, how) {
            await work('sampling', how);
            return { role: 'assistant', model: 'none', content: { type: 'text', text: `sampled by ${name}` } };
        },
        async elicitation(params, how) {
            await work(params.mode === 'url' ? `url ${params.url}` : 'form', how);
            return params.mode === 'url' ? { action: 'accept' } : { action: 'accept', content: { name } };
        },
        async roots(_, how) {
            await work('roots', how);
            return { roots: [{ uri: `file:///${name}` }] };
        }
    };
}

function answering({ sdk, mode, name }, note) {
    const info = { name, version: '1.0.0' };
    const { sampling, elicitation, roots } = answers(name, note);
    if (sdk === 1) {
        const client = new LegacyClient(info, { capabilities: ALL_CAPABILITIES });
        const handle = (schema, handler) =>
            client.setRequestHandler(schema, ({ params }, extra) => {
                const { signal, sendNotification: report } = extra;
                return handler(params, { token: params?._meta?.progressToken, report, signal });
            });
        handle(CreateMessageRequestSchema, sampling);
        handle(ElicitRequestSchema, elicitation);
        handle(ListRootsRequestSchema, roots);
        return client;
    }
    const how = { capabilities: ALL_CAPABILITIES, versionNegotiation: { mode: MODES[mode] } };
    const client = new ModernClient(info, how);
    const handle = (method, handler) =>
        client.setRequestHandler(method, ({ params }, { mcpReq }) =>
            handler(params, { token: mcpReq._meta?.progressToken, report: mcpReq.notify, signal: mcpReq.signal })
        );
    handle('sampling/createMessage', sampling);
    handle('elicitation/create', elicitation);
    handle('roots/list', roots);
    return client;
}

function make({ sdk, mode, confirm }) {
    const capabilities = confirm === undefined ? {} : { elicitation: {} };
    const info = { name: `driver-${sdk}`, version: '1.0.0' };
    const accept = ({ params }) => ({ action: 'accept', content: { word: `${confirm} to ${params.message}` } });
    if (sdk === 1) {
        const client = new LegacyClient(info, { capabilities });
        if (confirm !== undefined) {
            client.setRequestHandler(ElicitRequestSchema, accept);
        }
        return client;
    }
    const client = new ModernClient(info, { capabilities, versionNegotiation: { mode: MODES[mode] } });
    if (confirm !== undefined) {
        client.setRequestHandler('elicitation/create', accept);
    }
    return client;
}

const operations = {
    async open({ handle, command, env, ...kind }) {
        const opened = { events: [], waiting: [], version: null, subscription: null };
        const note = event => {
            opened.events.push(event);
            opened.waiting.splice(0).forEach(resolve => resolve());
        };
        const client = kind.name === undefined ? make(kind) : answering(kind, note);
        opened.client = client;
        const Transport = kind.sdk === 1 ? LegacyTransport : ModernTransport;
        const transport = new Transport({ command: command[0], args: command.slice(1), env, stderr: 'inherit' });
        if (kind.sdk === 1) {
            // How an HTTP transport learns the version; this client has no other way of saying it.
            transport.setProtocolVersion = version => (opened.version = version);
        } else {
            watch(client, note);
        }
        await client.connect(transport);
        clients.set(handle, opened);
        return { version: opened.version ?? client.getNegotiatedProtocolVersion() };
    },

    async ask({ handle, calls }) {
        const { client } = clients.get(handle);
        const ask = async ([name, args]) => {
            try {
                const result = await client.callTool({ name, arguments: args });
                return { text: result.content.map(block => block.text ?? '').join('') };
            } catch (error) {
                return refusal(error);
            }
        };
        return { answers: await Promise.all(calls.map(ask)) };
    },

    async give_up({ handle, tool }) {
        const { client } = clients.get(handle);
        const giving = new AbortController();
        const how = { signal: giving.signal, onprogress: () => giving.abort('enough') };
        const params = { name: tool, arguments: {} };
        const called = client instanceof LegacyClient ? client.callTool(params, undefined, how) : client.callTool(params, how);
        await called.then(() => Promise.reject(new Error('it was answered')), () => undefined);
        return {};
    },

    async listen({ handle, filter }) {
        const opened = clients.get(handle);
        opened.subscription = await opened.client.listen(filter);
        return { granted: opened.subscription.honoredFilter };
    },

    async events({ handle, count }) {
        const opened = clients.get(handle);
        while (opened.events.length < count) {
            await new Promise(resolve => opened.waiting.push(resolve));
        }
        return { events: opened.events.splice(0) };
    },

    async unlisten({ handle }) {
        await clients.get(handle).subscription.close();
        return {};
    },

    async close({ handle }) {
        const opened = clients.get(handle);
        clients.delete(handle);
        await opened.client.close();
        return {};
    }
};

function watch(client, note) {
    client.setNotificationHandler('notifications/resources/updated', n => note(`updated ${n.params.uri}`));
    client.setNotificationHandler('notifications/tools/list_changed', () => note('tools'));
}

async function answer(line) {
    const { id, op, ...rest } = JSON.parse(line);
    let reply;
    try {
        reply = await operations[op](rest);
    } catch (error) {
        reply = { refused: refusal(error) };
    }
    process.stdout.write(`${JSON.stringify({ id, ...reply })}\n`);
}

const lines = createInterface({ input: process.stdin, crlfDelay: Infinity });
lines.on('line', answer);
lines.on('close', async () => {
    await Promise.all([...clients.values()].map(({ client }) => client.close()));
    process.exit(0);
});
