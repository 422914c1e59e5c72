// Clients of the official TypeScript SDKs, 1.x and 2.x, that the tests drive: one JSON object a line on stdin,
// one on stdout for each, by its "id". What each operation takes and gives stands in tests/real/drivers.py.
// Every client is started as a host starts one: it launches a command and speaks to it over its stdio.

import { createInterface } from 'node:readline';
import { Client as ModernClient } from '@modelcontextprotocol/client';
import { StdioClientTransport as ModernTransport } from '@modelcontextprotocol/client/stdio';
import { Client as LegacyClient } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport as LegacyTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js';

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
        const client = make(kind);
        const Transport = kind.sdk === 1 ? LegacyTransport : ModernTransport;
        const transport = new Transport({ command: command[0], args: command.slice(1), env, stderr: 'inherit' });
        const opened = { client, events: [], waiting: [], version: null, subscription: null };
        if (kind.sdk === 1) {
            // How an HTTP transport learns the version; this client has no other way of saying it.
            transport.setProtocolVersion = version => (opened.version = version);
        } else {
            watch(opened);
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

function watch(opened) {
    const note = event => {
        opened.events.push(event);
        opened.waiting.splice(0).forEach(resolve => resolve());
    };
    opened.client.setNotificationHandler('notifications/resources/updated', n => note(`updated ${n.params.uri}`));
    opened.client.setNotificationHandler('notifications/tools/list_changed', () => note('tools'));
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
