# The bridge alone, without a server to serve. Put yours on top of it:
#
#     FROM mcp-socket-bridge:0.1.0
#     USER root
#     RUN python -m pip install --no-cache-dir mcp-server-time==2026.10.19
#     USER 10001:10001
#     CMD ["--admin", "unix:/run/mcp/admin.sock", "--listen", "unix:/run/mcp/mcp.sock", \
#          "--", "mcp-server-time", "--local-timezone", "UTC"]
#
# The bridge lives in an environment of its own, so a server's requirements never meet the bridge's.

FROM python:3.13-slim AS build
WORKDIR /src
COPY requirements/build.txt requirements/run.txt requirements/
RUN python -m venv --without-pip /opt/mcp-bridge \
    && python -m pip --python /opt/mcp-bridge install --no-cache-dir --require-hashes -r requirements/run.txt \
    && python -m pip install --no-cache-dir --require-hashes -r requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY bridge bridge
RUN python -m hatchling build --target wheel --directory /dist \
    && python -m pip --python /opt/mcp-bridge install --no-cache-dir --no-deps --no-index /dist/*.whl

FROM python:3.13-slim
COPY --from=build /opt/mcp-bridge /opt/mcp-bridge
COPY deploy/probe.py /usr/local/bin/mcp-bridge-probe
# A fixed number, since others refer to it: who shares the socket must run as the same user (its mode is
# 0600). /run/mcp is where a volume goes; a new named volume takes its owner from here.
RUN ln -s /opt/mcp-bridge/bin/mcp-bridge /usr/local/bin/mcp-bridge \
    && chmod 755 /usr/local/bin/mcp-bridge-probe \
    && groupadd --gid 10001 bridge \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin bridge \
    && install -d -m 700 -o bridge -g bridge /run/mcp
USER 10001:10001
# Asks the endpoint that --admin opens: give that option in every CMD that serves.
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s --retries=3 CMD ["mcp-bridge-probe", "healthz"]
ENTRYPOINT ["mcp-bridge"]
# Without arguments: the built-in demo server, to see that it works.
CMD ["--admin", "unix:/run/mcp/admin.sock", "--listen", "unix:/run/mcp/mcp.sock", "--", "mcp-bridge", "demo-server"]
