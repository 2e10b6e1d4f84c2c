// Takes spans as OTLP over HTTP in JSON, and appends each request's body to a file, one a line.
// usage: span-receiver.mjs PORT FILE
import { appendFileSync } from 'node:fs';
import { createServer } from 'node:http';
import process from 'node:process';

const [port, file] = process.argv.slice(2);

createServer((request, response) => {
  let body = '';
  request.setEncoding('utf8').on('data', (chunk) => (body += chunk));
  request.on('end', () => {
    appendFileSync(file, `${body}\n`);
    response.setHeader('content-type', 'application/json').end('{}');
  });
}).listen(Number(port), '127.0.0.1');
