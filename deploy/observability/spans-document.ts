import { ATTRIBUTES, SPANS } from '@podwire/shared/telemetry/spans';

const HEAD = `# Spans

Generated from the table in \`services/shared/telemetry/spans.ts\` by \`npm run dashboards\`. A span of a call is named after
its method, such as \`podwire.ipam.v1.AddressService/Allocate\`: CLIENT at the caller, SERVER at the service. Background
checks have no spans. A repeated call is an event \`podwire.retry\` of the command's span, with \`error.type\`.
`;

/** The content of SPANS.md. */
export function spansDocument(): string {
  const spans = Object.entries(SPANS).map(([name, { kind, about }]) => [`\`${name}\``, kind, about]);
  const attributes = Object.entries(ATTRIBUTES).map(([name, { type, about }]) => [`\`${name}\``, type, about]);
  return [
    HEAD,
    table(['Span', 'Kind', 'Meaning'], spans),
    '## Attributes\n',
    table(['Attribute', 'Type', 'Meaning'], attributes),
  ].join('\n');
}

function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const lines = [head, head.map(() => '---'), ...rows];
  return `${lines.map((cells) => `| ${cells.join(' | ')} |`).join('\n')}\n`;
}
